"""The files in data/ are what data/README.md says, and the corpus is clean dialogue."""

import hashlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "data"
OPENING = """First Citizen:
Before we proceed any further, hear me speak.

All:
Speak, speak.

First Citizen:
You are all resolved rather to die than to famish?

All:
Resolved, resolved.
"""
# One line that everybody knows from every play.
FAMOUS = {
    "All's Well That Ends Well": "The web of our life is of a mingled yarn",
    "Antony and Cleopatra": "The barge she sat in, like a burnish'd throne",
    "As You Like It": "All the world's a stage,\n",
    "The Comedy of Errors": "Am I in earth, in heaven, or in hell?\n",
    "Coriolanus": "There is a world elsewhere.\n",
    "Cymbeline": "Hark, hark! the lark at heaven's gate sings",
    "Hamlet": "Hamlet:\nTo be, or not to be,--that is the question:",
    "1 Henry IV": "Glendower:\nI can call spirits from the vasty deep.\n",
    "2 Henry IV": "Uneasy lies the head that wears a crown.\n",
    "Henry V": "King Henry V:\nOnce more unto the breach, dear friends, once more",
    "1 Henry VI": "She's beautiful and therefore to be woo'd",
    "2 Henry VI": "The first thing we do, let's kill all the lawyers.\n",
    "3 Henry VI": "King Henry VI:\nMy crown is in my heart, not on my head",
    "Henry VIII": "Farewell! a long farewell, to all my greatness!\n",
    "King John": "To gild refined gold, to paint the lily",
    "Julius Caesar": "Antony:\nFriends, Romans, countrymen, lend me your ears",
    "King Lear": "How sharper than a serpent's tooth it is",
    "Love's Labour's Lost": "Winter:\nWhen icicles hang by the wall",
    "Macbeth": "Macbeth:\nShe should have died hereafter",
    "Measure for Measure": "Some rise by sin, and some by virtue fall",
    "The Merchant of Venice": "Portia:\nThe quality of mercy is not strain'd",
    "The Merry Wives of Windsor": "Why then, the world's mine oyster",
    "A Midsummer Night's Dream": "Lord, what fools these mortals be!\n",
    "Much Ado About Nothing": "Balthazar:\nSigh no more, ladies, sigh no more",
    "Othello": "It is the green-ey'd monster which doth mock",
    "Pericles": "I marvel how the fishes live in the sea",
    "Richard II": "this scepter'd isle",
    "Richard III": "Gloster:\nNow is the winter of our discontent\n",
    "Romeo and Juliet": "What's in a name? that which we call a rose\n",
    "The Taming of the Shrew": "And kiss me, Kate; we will be married o' Sunday.\n",
    "The Tempest": "Prospero:\nNow my charms are all o'erthrown,\n",
    "Timon of Athens": "'We have seen better days.'",
    "Titus Andronicus": "Rome is but a wilderness of tigers?\n",
    "Troilus and Cressida": "One touch of nature makes the whole world kin",
    "Twelfth Night": "Duke:\nIf music be the food of love, play on,\n",
    "The Two Gentlemen of Verona": "Musicians:\nWho is Silvia? What is she,\n",
    "The Winter's Tale": "Autolycus:\nLawn as white as driven snow",
}
# "Menenius", "King Henry VIII", "Jaques de Bois", "Lucius' Servant", "First Serving-man".
WORD = r"(?:[A-Z][a-z]+(?:-[a-z]+)?(?:'s|')?|[IVX]+)"
SPEAKER = re.compile(rf"{WORD}(?:,? (?:and |of the |of |de )?{WORD})*")


@pytest.fixture(scope="module")
def readme() -> str:
    return (DATA / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def corpus() -> str:
    return (DATA / "shakespeare.txt").read_bytes().decode("ascii")


@pytest.fixture(scope="module")
def blocks(corpus: str) -> list[list[str]]:
    return [block.split("\n") for block in corpus.rstrip("\n").split("\n\n")]


def test_readme_gives_size_and_checksum(readme: str) -> None:
    for name in ("shakespeare.txt", "gpt2.tiktoken"):
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}`"))
        size, checksum = [cell.strip(" `") for cell in row.split("|")][-3:-1]
        content = (DATA / name).read_bytes()
        assert int(size.replace(",", "")) == len(content)
        assert checksum == hashlib.sha256(content).hexdigest()


def test_readme_counts(readme: str, corpus: str, blocks: list[list[str]]) -> None:
    rows = re.findall(r"^\| ([A-Z][a-z ]+) \| ([\d,]+) \|$", readme, re.MULTILINE)
    assert {label: int(number.replace(",", "")) for label, number in rows} == {
        "Plays": len(FAMOUS),
        "Speeches": len(blocks),
        "Speaker names": len({block[0] for block in blocks}),
        "Lines of speech": sum(len(block) - 1 for block in blocks),
        "Characters": len(corpus),
        "Distinct characters": len(set(corpus)),
    }


def test_alphabet_and_whitespace(corpus: str) -> None:
    assert corpus.startswith(OPENING)
    letters = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert set(corpus) == letters | set("\n !',-.:;?")
    assert corpus.endswith("\n")
    assert not corpus.endswith("\n\n")
    assert not re.search(r"\n\n\n|  | \n|\n ", corpus)


def test_speeches_and_speakers(blocks: list[list[str]]) -> None:
    bad = [block for block in blocks if len(block) < 2 or not block[0].endswith(":")]
    assert bad == []
    lengths = sorted(len(block) - 1 for block in blocks)
    assert lengths[-1] < 150
    assert lengths[len(lengths) // 2] <= 3
    assert max(len(line) for block in blocks for line in block) < 120
    speakers = Counter(block[0].removesuffix(":") for block in blocks)
    assert [name for name in speakers if not SPEAKER.fullmatch(name)] == []
    assert min(map(len, speakers)) >= 2
    assert max(map(len, speakers)) <= 30
    # The largest part is below 600 speeches, and the great parts are all there.
    assert speakers.most_common(1)[0][1] < 600
    great = ("Hamlet", "Iago", "Falstaff", "Rosalind", "Cleopatra", "King Richard III", "King Lear")
    assert all(speakers[name] > 130 for name in great)
    assert speakers["Lady Macbeth"] > 50
    assert sum(count == 1 for count in speakers.values()) < 200


LEFTOVERS = [
    r"\bSCENE\b|\bACT\b|^(?:Act|Scene) (?:[IVX]+|\d+)\b",
    r"^(?:Exit|Exeunt|Re-enter|Enter)\b[^,.;]*[.]?$",
    r"\b(?:Exeunt|Re-enter)\b",
    r"^(?:Aside|Within|Flourish|Alarums?|Dies|Sings|Reads|Kneels|Sennet|Song)\.?$",
    r"^(?:Enter|Exit) [A-Z]",
    # A speaker in capitals that a speech swallowed; two letters are signed like that.
    r"^(?!PAROLLES|DON ADRIANO)[A-Z]{2,}(?: [A-Z]+)*\.(?: |$)",
]


def test_no_leftovers(corpus: str) -> None:
    for pattern in LEFTOVERS:
        assert re.findall(pattern, corpus, re.MULTILINE) == [], pattern
    lower = corpus.lower()
    words = ("gutenberg", "copyright", " etext", "public domain", "transcriber", "dramatis")
    assert [word for word in words if word in lower] == []


def test_every_play_is_there(corpus: str) -> None:
    assert {play for play, line in FAMOUS.items() if corpus.count(line) != 1} == set()


def test_gpt2_ranks() -> None:
    lines = (DATA / "gpt2.tiktoken").read_text(encoding="ascii").splitlines()
    ranks = [int(line.split()[1]) for line in lines]
    assert ranks == list(range(50256))


def test_bad_path_is_one_clear_line(tmp_path: Path) -> None:
    script = [sys.executable, str(DATA / "make_shakespeare.py")]
    command = [*script, str(tmp_path / "no_such_folder"), "--out", str(tmp_path / "out.txt")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out.txt").exists()


def test_the_model_that_ships_is_what_the_readme_says(readme: str, corpus: str) -> None:
    from cs336_lib.sampling import complete
    from cs336_lib.training import checkpoint

    (weights,) = checkpoint.SHIPPED_RUN.rglob("*.safetensors")
    assert weights.stat().st_size <= 15_000_000
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert f"{weights.stat().st_size:,} | `{digest}`" in readme
    model, tokenizer = checkpoint.load_shipped()
    assert f"{model.num_parameters():,} parameters" in readme
    state = checkpoint.read_state(weights.parent)
    assert f"loss is {state['val_loss']:.4f} nats" in readme
    # It writes words: most of them are in the plays, and not copied from there as a whole.
    text = complete(model, tokenizer, "Romeo:\n", 600, temperature=0.7, seed=0)
    known = set(re.findall(r"[a-z]{4,}", corpus.lower()))
    words = re.findall(r"[a-z]{4,}", text.lower())
    assert sum(word in known for word in words) / len(words) > 0.7
    assert text[-200:] not in corpus


def test_the_model_that_ships_was_made_by_the_recorded_command() -> None:
    import dataclasses
    import json

    from cs336_lib.cli import parse
    from cs336_lib.training import checkpoint

    sys.path.insert(0, str(DATA))
    from make_shakespeare_gpt import FLAGS

    config = dataclasses.asdict(parse(["train", *FLAGS]).config)
    saved = json.loads((checkpoint.SHIPPED_RUN / "config.json").read_text())
    different = {name for name, value in saved.items() if config[name] != value}
    assert different == {"run_dir", "resume"}
    rows = (checkpoint.SHIPPED_RUN / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == list(range(config["max_steps"]))


def test_the_model_that_ships_has_the_loss_it_claims() -> None:
    import json
    from contextlib import nullcontext

    import torch

    from cs336_lib.data.loader import Loader, open_data
    from cs336_lib.evals.loss import validation_loss
    from cs336_lib.training import checkpoint

    model, tokenizer = checkpoint.load_shipped()
    _, stream, _ = open_data("", "", "char")
    loss = validation_loss(
        model,
        Loader(stream, model.config.block_size, tokenizer.vocab_size, 1337),
        32768,  # a quarter of what the recorded figure was measured on
        micro_batch_size=16,
        device=torch.device("cpu"),
        autocast=nullcontext(),
    )
    row = json.loads((checkpoint.SHIPPED_RUN / "metrics.jsonl").read_text().splitlines()[-1])
    assert abs(loss - row["val_loss"]) < 0.03
