"""Whether token ids mean the same to a run, to the data it reads and to the weights it begins with.

That there are equally many ids says nothing: letters would come out permuted, without an error.
"""

from collections.abc import Iterable
from pathlib import Path

from cs336_lib.files import read_json
from cs336_lib.tokenizer import CharTokenizer, Tokenizer, load_tokenizer


def same_tokenizer(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether each id is the same text to both."""
    return one.name == other.name and alphabet(one) == alphabet(other)


def alphabet(tokenizer: Tokenizer) -> str:
    """A char tokenizer's characters; nothing for gpt2, which there is only one of."""
    return tokenizer.alphabet if isinstance(tokenizer, CharTokenizer) else ""


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """The tokenizer of a run folder, of prepared data or of a char model that we exported.

    None where there is no tokenizer.json, or another of Hugging Face's, which we do not read.

    Raises:
        ValueError: it is damaged.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    described = read_json(path)
    if "name" in described:
        return load_tokenizer(path)
    model = described.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or any(len(token) != 1 for token in vocab) or not vocab:
        return None
    made = CharTokenizer("".join(vocab))
    return made if vocab == {c: number for number, c in enumerate(made.alphabet)} else None


def require_tokenizer(shards: Iterable[str], made: Tokenizer, advice: str) -> None:
    """Refuse shards that lie beside the tokenizer.json of another tokenizer than `made`.

    Raises:
        ValueError: they do; `advice` ends the line, with {folder} and {name} filled in.
    """
    for folder in dict.fromkeys(Path(shard).parent for shard in shards):
        theirs = tokenizer_of(folder)
        if theirs is None or same_tokenizer(theirs, made):
            continue
        other = "another alphabet" if theirs.name == made.name else f"tokenizer {theirs.name!r}"
        end = advice.replace("{folder}", str(folder)).replace("{name}", theirs.name)
        raise ValueError(
            f"{folder} was prepared with {other} and would be read with this run's "
            f"{made.name!r}; {end}"
        )
