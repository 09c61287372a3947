"""The one-file trainer gives the losses of `cs336_lib.training.loop`, alone and by torchrun.

Both begin with the same weights. Each draws its own if it isn't given any.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_course.one_file import assemble
from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.prepare import prepare
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT
from cs336_lib.training.loop import train

ROOT = Path(__file__).parents[2]
SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 64}
RECIPE = SHAPE | {
    "max_steps": 20,
    "batch_tokens": 1024,
    "micro_batch_size": 4,
    "learning_rate": 1e-3,
    "min_learning_rate": 1e-4,
    "warmup_steps": 5,
    "eval_every": 10,
    "eval_tokens": 4096,
}
EXAMPLES = [
    {"ctx": "O Romeo, Romeo, wherefore art", "endings": ["thou", "sky", "7", "x"], "label": 0},
    {"ctx": "To be, or not", "endings": ["x", "sky", "to be", "7"], "label": 2},
    {"ctx": "My kingdom for", "endings": ["sky", "a horse", "x", "7"], "label": 1},
]
AGAIN = "cs336 assemble --notebooks notebooks --out train_gpt2.py --overwrite"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> tuple[Path, list[dict]]:
    """A folder with data, and the rows of `train` on them."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(shakespeare()[:1_000_000])
    prepare(folder / "text.txt", folder / "shards", "gpt2", shard_tokens=100_000)
    (folder / "hellaswag.jsonl").write_text("\n".join(map(json.dumps, EXAMPLES)))
    hugging_face.export(GPT(GPTConfig(**SHAPE), seed=1337), folder / "start", GPT2Tokenizer())
    config = TrainConfig(
        run_dir=str(folder / "run"),
        train_data=str(folder / "shards"),
        hellaswag=str(folder / "hellaswag.jsonl"),
        init_from=str(folder / "start"),
        device="cpu",
        precision="fp32",
        **RECIPE,
    )
    return folder, train(config).metrics


@pytest.mark.parametrize(("launcher", "tolerance"), [([], 1e-6), (TORCHRUN, 1e-5)])
def test_losses_are_those_of_the_library(expected, tmp_path, launcher, tolerance):
    folder, rows = expected
    flags = {f"--{name.replace('_', '-')}": str(value) for name, value in RECIPE.items()}
    flags |= {f"--{part}": str(folder / "shards" / f"{part}_*.bin") for part in ("train", "val")}
    flags |= {"--init-from": str(folder / "start" / hugging_face.WEIGHTS)}
    flags |= {"--hellaswag": str(folder / "hellaswag.jsonl"), "--out": str(tmp_path)}
    command = [sys.executable, *launcher, "train_gpt2.py", "--no-bf16"]
    arguments = [word for flag in flags.items() for word in flag]
    subprocess.run([*command, *arguments], cwd=ROOT, check=True, timeout=300)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log] == list(range(RECIPE["max_steps"]))
    for ours, theirs in zip(log, rows, strict=True):
        assert ours["loss"] == pytest.approx(theirs["train_loss"], abs=tolerance)
        assert ours["lr"] == theirs["lr"]
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
        assert ("sample" in ours) == ("val_loss" in theirs)
        if "val_loss" in theirs:
            # The file adds 16 losses in fp32, and each sum is rounded by up to 6e-8 of itself.
            assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-6)
            assert ours["hellaswag"] == theirs["hellaswag"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.jsonl", "model.safetensors"]


def solve(folder: Path) -> None:
    """Copy the notebooks with each part's solution in its stub cell, as a learner would."""
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        notebook = json.loads(path.read_text())
        cells = notebook["cells"]
        for place, cell in enumerate(cells):
            if {"exercise", "part"} <= cell["metadata"].get("cs336", {}).keys():
                later = cells[place + 1 : place + 4]
                solutions = (c for c in later if "solution" in c["metadata"].get("tags", []))
                (code,) = re.findall(
                    r"```python\n(.*?)```", "".join(next(solutions)["source"]), re.S
                )
                cell["source"] = [code, "\n\n", cell["source"][-1]]
        (folder / path.name).write_text(json.dumps(notebook))


def test_a_learner_who_has_written_every_part_gets_the_same_file(tmp_path):
    solve(tmp_path)
    found = assemble.write(tmp_path / "train_gpt2.py", tmp_path)
    others = {part.name: part.missing for part in found if not (part.given or part.is_mine)}
    assert not others
    assert (tmp_path / "train_gpt2.py").read_text() == (ROOT / "train_gpt2.py").read_text()


def test_the_file_that_ships_is_assembled_from_the_solutions():
    text = assemble.text(assemble.parts(ROOT / "notebooks"))
    assert (ROOT / "train_gpt2.py").read_text() == text, AGAIN
    lines = [line for line in text.splitlines() if line.strip()]
    assert 250 <= len(lines) <= 410
