"""Preparing 40 MB: the same shards for any number of workers, in flat memory."""

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_lib.data.corpus import shakespeare

MEGABYTE = 2**20
# Prepares, then prints the tokens of both parts and the most memory the process has held, in KiB.
CHILD = """
import json, resource, sys
from pathlib import Path
from cs336_lib.data import prepare as preparing
from cs336_lib.data.documents import Corpus
preparing.SAVE_SECONDS = 0.2
source, out, workers = Corpus((Path(sys.argv[1]),)), Path(sys.argv[2]), int(sys.argv[3])
counts = preparing.prepare(source, out, workers=workers, shard_tokens=2_000_000)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
status = Path("/proc/self/status")
if status.exists():  # Linux, where ru_maxrss also counts the process that started this one
    memory = int(status.read_text().split("VmHWM:")[1].split()[0])
print(json.dumps([counts, memory]))
"""


def generate(path: Path, megabytes: int) -> Path:
    """Pieces of the plays in random order, as JSON lines."""
    plays, chance, written = shakespeare(), random.Random(0), 0
    with open(path, "w") as file:
        while written < megabytes * MEGABYTE:
            start = chance.randrange(len(plays) - 10_000)
            text = plays[start : start + chance.randrange(100, 10_000)]
            written += file.write(json.dumps({"text": text}) + "\n")
    return path


def start(source: Path, out: Path, workers: int) -> subprocess.Popen:
    """Start to prepare in a separate process."""
    command = [sys.executable, "-c", CHILD, source, out, workers]
    return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> tuple[dict[str, int], float]:
    """Wait for the end; return the tokens of each part and the memory used in MiB."""
    output, _ = process.communicate()
    assert process.returncode == 0
    counts, memory = json.loads(output)
    return counts, memory / (MEGABYTE if sys.platform == "darwin" else 1024)


def digests(folder: Path) -> dict[str, str]:
    """A checksum of every file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Generate a source of 40 MB, and prepare it with one worker."""
    folder = tmp_path_factory.mktemp("scale")
    source = generate(folder / "source.jsonl", 40)
    counts, memory = finish(start(source, folder / "one", 1))
    return source, counts, memory, digests(folder / "one")


def test_memory_does_not_grow_with_the_source(prepared, tmp_path):
    source, _, memory, _ = prepared
    small = generate(tmp_path / f"small{source.suffix}", 10)
    _, little = finish(start(small, tmp_path / "out", 1))
    assert memory < little + 10


def test_workers_change_nothing(prepared, tmp_path):
    source, counts, memory, expected = prepared
    found, with_workers = finish(start(source, tmp_path / "out", 3))
    assert found == counts
    assert digests(tmp_path / "out") == expected
    assert with_workers < memory + 60  # seven pieces of text with their tokens
