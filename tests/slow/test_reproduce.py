"""The whole of reproduce/gpt2_124m.sh at a small scale: killed, it ends the same.

The data is a folder in FineWeb-Edu's layout, the model has two layers, and the flags are the only
difference from the full run.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from forked import rows, rows_written, wait

from cs336_course.shared import tiktoken_cache
from cs336_lib import hugging_face
from cs336_lib.data.corpus import shakespeare
from cs336_lib.training.checkpoint import load_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the script needs bash 4.4")

REPRODUCE = Path(__file__).parents[2] / "reproduce"
SCRIPT = "reproduce/gpt2_124m.sh"
STEPS, EVERY = 30, 5  # a checkpoint every so many steps
WEIGHTS = f"checkpoints/step_{STEPS:08d}/model.safetensors"
SHAPE = (
    "--n-layer 2 --n-head 2 --n-embd 32 --block-size 64 --batch-tokens 256 --micro-batch-size 2 "
    "--eval-tokens 2048 "
)
FLAGS = {
    "PREPARE_FLAGS": "--val-fraction 0.05 --shard-tokens 1000000 --workers 1",
    "TRAIN_FLAGS": (
        f"{SHAPE} --max-steps {STEPS} --warmup-steps 5 --learning-rate 3e-3 "
        f"--checkpoint-every {EVERY} --eval-every 10 --log-every 1 --device cpu --precision fp32"
    ),
    "EVAL_FLAGS": "--eval-tokens 2048 --micro-batch-size 2 --device cpu",
    "GPUS": "1",
}
ENDINGS = ["waters the roses.", "waits until the water boils.", "rides away.", "opens the door."]


def write_parquet(folder: Path) -> None:
    """Write files with columns of FineWeb-Edu, each of several row groups."""
    import pyarrow
    from pyarrow import parquet

    plays, chance = shakespeare(), random.Random(0)
    folder.mkdir(parents=True)
    for file in range(3):
        texts = []
        for row in range(1300):
            start = chance.randrange(len(plays) - 10_000)
            text = plays[start : start + chance.randrange(100, 10_000)]
            texts.append(text + " “Gemüse” 東京 🙂" * (row % 100 == 0))
        table = pyarrow.table({"text": texts, "token_count": [len(text) // 4 for text in texts]})
        parquet.write_table(table, folder / f"{file:03}_00000.parquet", row_group_size=500)


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

    def start(self) -> subprocess.Popen:
        """Start the script in a process group of its own, with its output in log.txt."""
        with open(self.folder / "log.txt", "wb") as log:
            return subprocess.Popen(
                [SCRIPT],
                cwd=self.folder,
                env=self.environment,
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

    def files(self, folder: Path) -> dict[str, bytes]:
        """Return the content of every file in a folder."""
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def kill(process: subprocess.Popen) -> None:
    """Kill a process and all that it has started, also what torchrun puts into other groups."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in family:
        if one.is_running():
            one.kill()
    psutil.wait_procs(family[1:])
    assert process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, str]:
    """Write the data of all runs."""
    folder = tmp_path_factory.mktemp("sources")
    write_parquet(folder / "fineweb-edu" / "sample" / "10BT")
    examples = [
        {"ctx": "A woman fills a can at the tap. She", "endings": ENDINGS, "label": number}
        for number in (0, 1, 3)
    ]
    (folder / "hellaswag_val.jsonl").write_text("\n".join(map(json.dumps, examples)))
    return {
        "PARQUET": str(folder / "fineweb-edu"),
        "HELLASWAG": str(folder / "hellaswag_val.jsonl"),
    }


@pytest.fixture
def place(tmp_path, sources) -> Iterator[Place]:
    """Make a folder for one test."""
    place = Place(tmp_path, sources)
    yield place
    place.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, sources) -> Place:
    """Run the script once, from the first stage to the last."""
    place = Place(tmp_path_factory.mktemp("undisturbed"), sources)
    try:
        place.finish(place.start())
    finally:
        place.close()
    return place


def test_the_whole_run(undisturbed):
    found = rows(undisturbed.run_dir)
    assert [row["step"] for row in found] == list(range(STEPS))
    assert found[0]["train_loss"] == pytest.approx(torch.tensor(50257.0).log().item(), abs=0.1)
    assert found[-1]["val_loss"] < found[0]["train_loss"] - 1
    score = (undisturbed.run_dir / "score.txt").read_text()
    assert f"loss           {found[-1]['val_loss']:.4f} nats per token" in score
    assert f"HellaSwag      {found[-1]['hellaswag']:.4f} acc_per_token, " in score
    curve = [row for row in found if "hellaswag" in row]
    assert [row["step"] for row in curve] == [9, 19, 29]
    assert all(row["sample"].startswith("Hello, I'm a language model,") for row in curve)
    assert score in undisturbed.log
    model = hugging_face.load(undisturbed.run_dir / "export").state_dict()
    ours = load_model(undisturbed.run_dir, torch.device("cpu")).state_dict()
    assert all(torch.equal(model[name], value) for name, value in ours.items())


def test_killed_and_stopped_it_ends_the_same(undisturbed, place):
    run_dir = place.run_dir
    process = place.start()  # killed while it tokenizes
    temporary = place.folder / ".tmp-fineweb"
    wait(lambda: process.poll() is None, (temporary / "train_000000.bin").exists)
    kill(process)
    assert not place.data.exists()

    process = place.start()  # killed while it trains, after a checkpoint
    wait(lambda: process.poll() is None, lambda: rows_written(run_dir) > EVERY + 1)
    kill(process)

    # Ctrl-C in a terminal, which reaches all processes of the group, makes the run save.
    process = place.start()
    wait(lambda: process.poll() is None, lambda: rows_written(run_dir) > 2 * EVERY + 1)
    os.killpg(process.pid, signal.SIGINT)
    assert "stopped early; run the same command again to resume" in place.finish(process, 1)
    stopped = rows_written(run_dir)

    said = place.finish(place.start())
    assert "data: fineweb is complete" in said
    assert f", from step {stopped}: " in said
    assert place.files(place.data) == place.files(undisturbed.data)
    assert rows(run_dir) == rows(undisturbed.run_dir)
    for name in ("score.txt", "export/model.safetensors", "export/config.json", WEIGHTS):
        assert (run_dir / name).read_bytes() == (undisturbed.run_dir / name).read_bytes(), name

    before = place.files(run_dir)  # once more, there is nothing left to do
    assert place.finish(place.start()).count("is complete") == 3
    assert place.files(run_dir) == before


def test_the_one_file_trainer_takes_its_place(undisturbed, place):
    tiktoken_cache.fill(place.folder / "cache")
    (place.folder / "train_gpt2.py").symlink_to(REPRODUCE.parent / "train_gpt2.py")
    place.environment |= {
        "TRAINER": "train_gpt2.py",
        "DATA": str(undisturbed.data),
        "TRAIN_FLAGS": f"{SHAPE} --max-steps 12 --eval-every 4 --no-bf16 --no-compile",
        "TIKTOKEN_CACHE_DIR": str(place.folder / "cache"),
    }
    said = place.finish(place.start())
    assert "train: train_gpt2.py on " in said
    log = place.run_dir / "log.jsonl"
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["step"] for row in found] == list(range(12))
    score = (place.run_dir / "score.txt").read_text()
    assert f"loss           {found[-1]['val_loss']:.4f} nats per token" in score
    assert f"HellaSwag      {found[-1]['hellaswag']:.4f} acc_per_token" in score
    hugging_face.load(place.run_dir)
