"""The whole of reproduce/gpt2_124m.sh at a small scale: killed in several stages, it ends the same.

The data is a folder in FineWeb-Edu's layout, the model has two layers, and the flags are the only
difference from the full run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from cs336_course.shared import tiktoken_cache
from cs336_lib import hugging_face
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.prepare import SAVE_SECONDS
from cs336_lib.training.checkpoint import load_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the script needs bash 4.4")

REPRODUCE = Path(__file__).parents[2] / "reproduce"
SCRIPT = "reproduce/gpt2_124m.sh"
STEPS, EVERY = 30, 5  # a checkpoint every so many steps
LAST = f"step_{STEPS:08d}"
FLAGS = {
    "PREPARE_FLAGS": "--val-fraction 0.05 --shard-tokens 1000000 --workers 1",
    "TRAIN_FLAGS": (
        "--n-layer 2 --n-head 2 --n-embd 32 --block-size 64 --batch-tokens 256 "
        f"--micro-batch-size 2 --max-steps {STEPS} --warmup-steps 5 --learning-rate 3e-3 "
        f"--checkpoint-every {EVERY} --eval-every 10 --eval-tokens 2048 --log-every 1 "
        "--device cpu --precision fp32"
    ),
    "EVAL_FLAGS": "--eval-tokens 2048 --micro-batch-size 2 --device cpu",
    "GPUS": "1",
}
# In the format of HellaSwag's hellaswag_val.jsonl, about other subjects.
ACTIVITIES = [
    (
        "Watering plants",
        "A woman fills a can at the tap.",
        "she",
        "waters the roses in her garden.",
    ),
    ("Making tea", "A boy puts a kettle on the stove.", "he", "waits until the water boils."),
    ("Riding a bike", "A girl puts on a helmet.", "she", "gets on her bike and rides away."),
    ("Painting a fence", "A man opens a can of paint.", "he", "dips a brush into it."),
    ("Walking a dog", "A dog waits at the door.", "it", "runs out when the door opens."),
    ("Baking bread", "Two men knead dough on a table.", "they", "put the loaves into an oven."),
]


def write_parquet(folder: Path) -> None:
    """Write files with the columns of FineWeb-Edu, each of several row groups."""
    import pyarrow
    from pyarrow import parquet

    plays, chance = shakespeare(), random.Random(0)
    for file in range(3):
        rows = []
        for row in range(1300):
            start = chance.randrange(len(plays) - 10_000)
            text = plays[start : start + chance.randrange(100, 10_000)]
            if row % 100 == 0:
                text += " “Gemüse” 東京 🙂"
            rows.append(
                {
                    "text": text,
                    "id": f"<urn:uuid:{chance.getrandbits(128):032x}>",
                    "language_score": chance.uniform(0.65, 1.0),
                    "token_count": len(text) // 4,
                }
            )
        path = folder / "sample" / "10BT" / f"{file:03}_00000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=500)


def write_hellaswag(path: Path) -> None:
    """Write a few examples in which the other endings are those of other activities."""
    true_endings = [activity[3] for activity in ACTIVITIES]
    lines = []
    for number, (label, before, subject, _) in enumerate(ACTIVITIES):
        others = (true_endings[number + 1 :] + true_endings[:number])[:3]
        place = number % 4
        example = {
            "ind": number,
            "activity_label": label,
            "ctx_a": before,
            "ctx_b": subject,
            "ctx": f"{before} {subject}",
            "split": "val",
            "split_type": "indomain",
            "label": place,
            "endings": [*others[:place], true_endings[number], *others[place:]],
            "source_id": f"activitynet~v_{number:011}",
        }
        lines.append(json.dumps(example) + "\n")
    path.write_text("".join(lines))


class Place:
    """A folder in which the script runs, as in a clone of the repository.

    Args:
        folder: The folder, which must be empty.
        sources: Variables with the paths of the data.
    """

    def __init__(self, folder: Path, sources: dict[str, str]):
        self.folder = folder
        self.run_dir, self.data = folder / "runs" / "gpt2-124m", folder / "fineweb"
        (folder / "reproduce").symlink_to(REPRODUCE)
        (folder / ".venv").symlink_to(sys.prefix)
        self.environment = os.environ | FLAGS | sources

    def start(self, *command: str, **variables: str) -> subprocess.Popen:
        """Start a command in a process group of its own, with its output in log.txt."""
        with open(self.folder / "log.txt", "wb") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # A shell that runs this test in the background would have it ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def finish(self, process: subprocess.Popen, status: int = 0) -> str:
        """Wait for the end and return the output."""
        code = process.wait()
        assert code == status, self.log
        return self.log

    def close(self) -> None:
        """Kill what is left running in the folder."""
        for process in psutil.process_iter(["cwd"]):
            if process.info["cwd"] == str(self.folder.resolve()):
                process.kill()

    @property
    def log(self) -> str:
        """Output of the latest command."""
        return (self.folder / "log.txt").read_text(errors="replace")

    def wait(self, process: subprocess.Popen, until: Callable[[], bool]) -> None:
        """Wait for a moment in the life of a process."""
        while not until():
            assert process.poll() is None or until(), f"it ended too early: {self.log}"
            time.sleep(0.001)

    def steps(self) -> int:
        """Return how many rows of metrics are written."""
        path = self.run_dir / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics without what is measured by the clock."""
        lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
        timed = {"step_ms", "tokens_per_sec", "mfu"}
        return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]

    def files(self, folder: Path) -> dict[str, bytes]:
        """Return the content of every file in a folder."""
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def kill(process: subprocess.Popen) -> None:
    """Send SIGKILL to the process group, and to workers that torchrun puts into others."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    for child in family:
        if child.is_running():
            child.kill()
    psutil.wait_procs(family)
    assert process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, str]:
    """Write the data of all runs."""
    folder = tmp_path_factory.mktemp("sources")
    write_parquet(folder / "fineweb-edu")
    write_hellaswag(folder / "hellaswag_val.jsonl")
    return {
        "PARQUET": str(folder / "fineweb-edu"),
        "HELLASWAG": str(folder / "hellaswag_val.jsonl"),
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, sources) -> Place:
    """Run the script once, from the first stage to the last."""
    place = Place(tmp_path_factory.mktemp("undisturbed"), sources)
    try:
        place.finish(place.start(SCRIPT))
    finally:
        place.close()
    return place


def test_the_whole_run(undisturbed):
    rows = undisturbed.rows()
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert rows[0]["train_loss"] == pytest.approx(torch.tensor(50257.0).log().item(), abs=0.1)
    assert rows[-1]["val_loss"] < rows[0]["train_loss"] - 1
    score = (undisturbed.run_dir / "score.txt").read_text()
    assert f"loss           {rows[-1]['val_loss']:.4f} nats per token" in score
    assert f"HellaSwag      {rows[-1]['hellaswag']:.4f} acc_per_token, " in score
    assert f"({len(ACTIVITIES)} examples; " in score
    curve = [row for row in rows if "hellaswag" in row]
    assert [row["step"] for row in curve] == [9, 19, 29]
    assert all(row["sample"].startswith("Hello, I'm a language model,") for row in curve)
    assert score in undisturbed.log
    export = undisturbed.run_dir / "export"
    model, ours = hugging_face.load(export), load_model(undisturbed.run_dir, torch.device("cpu"))
    for name, value in ours.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.fixture
def place(tmp_path, sources) -> Iterator[Place]:
    """Make a folder for one test."""
    place = Place(tmp_path, sources)
    yield place
    place.close()


def test_killed_in_every_stage_it_ends_the_same(undisturbed, place):
    run_dir = place.run_dir

    # While it tokenizes. A pause makes the next batch save the progress.
    temporary = place.folder / ".tmp-fineweb"
    process = place.start(SCRIPT)
    place.wait(process, lambda: (temporary / "train_000000.bin").exists())
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(SAVE_SECONDS)
    os.killpg(process.pid, signal.SIGCONT)
    place.wait(process, lambda: (temporary / "progress.json").exists())
    kill(process)
    assert not place.data.exists()

    # While it trains, after a checkpoint.
    process = place.start(SCRIPT)
    place.wait(process, lambda: place.steps() > EVERY + 1)
    kill(process)
    assert "fineweb: resuming after " in place.log
    assert not (run_dir / "checkpoints" / LAST).exists()

    # Ctrl-C in a terminal, which reaches all processes of the group, makes the run save.
    process = place.start(SCRIPT)
    place.wait(process, lambda: place.steps() > 2 * EVERY + 1)
    os.killpg(process.pid, signal.SIGINT)
    assert "stopped early; run the same command again to resume" in place.finish(process, 1)
    stopped = place.steps()
    assert (run_dir / "checkpoints" / f"step_{stopped:08d}").exists()

    # While it scores.
    process = place.start(SCRIPT)
    place.wait(process, lambda: (run_dir / "score.txt.part").exists())
    kill(process)
    assert "data: fineweb is complete" in place.log
    assert f", from step {stopped}: " in place.log
    assert not (run_dir / "score.txt").exists()

    assert "train: runs/gpt2-124m is complete" in place.finish(place.start(SCRIPT))
    assert place.files(place.data) == place.files(undisturbed.data)
    assert place.rows() == undisturbed.rows()
    for name in ("score.txt", "export/model.safetensors", "export/config.json"):
        assert (run_dir / name).read_bytes() == (undisturbed.run_dir / name).read_bytes(), name
    weights = f"checkpoints/{LAST}/model.safetensors"
    assert (run_dir / weights).read_bytes() == (undisturbed.run_dir / weights).read_bytes()

    # Once more, there is nothing left to do.
    before = place.files(run_dir)
    assert place.finish(place.start(SCRIPT)).count("is complete") == 3
    assert place.files(run_dir) == before


@pytest.mark.parametrize("file", ["train_gpt2.py"])
def test_the_one_file_trainer_killed_and_run_again(undisturbed, place, file):
    tiktoken_cache.fill(place.folder / "cache")
    (place.folder / file).symlink_to(REPRODUCE.parent / file)
    flags = "--n-layer 2 --n-head 2 --n-embd 32 --block-size 64 --batch-tokens 256 "
    flags += "--micro-batch-size 2 --max-steps 12 --eval-every 4 --eval-tokens 2048 "
    place.environment |= {
        "TRAINER": file,
        "DATA": str(undisturbed.data),
        "TRAIN_FLAGS": flags + "--no-bf16 --no-compile",
        "TIKTOKEN_CACHE_DIR": str(place.folder / "cache"),
    }
    run_dir, log = place.run_dir, place.run_dir / "log.jsonl"
    process = place.start(SCRIPT)
    place.wait(process, lambda: log.exists() and log.read_bytes().count(b"\n") >= 6)
    kill(process)
    said = place.finish(place.start(SCRIPT))
    assert f"train: {file} on " in said
    assert "\nstep 3, " not in said
    assert "\nstep 11, " in said
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(12))
    score = (run_dir / "score.txt").read_text()
    assert f"loss           {rows[-1]['val_loss']:.4f} nats per token" in score
    assert f"HellaSwag      {rows[-1]['hellaswag']:.4f} acc_per_token" in score
    saved = load_file(run_dir / "model.safetensors")
    assert sum(value.numel() for value in saved.values()) > 1_600_000
    if file == "train_gpt2.py":
        assert len(hugging_face.load(run_dir).state_dict()) >= len(saved)

    before = place.files(run_dir)
    assert place.finish(place.start(SCRIPT)).count("is complete") == 3
    assert place.files(run_dir) == before
