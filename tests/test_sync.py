"""Files are synced before they get their names, so a power cut leaves whole ones or none."""

import os
import stat
import sys
from pathlib import Path

import pytest
import torch

from cs336_lib import checkpoint, io
from cs336_lib.config import TrainConfig
from cs336_lib.data.prepare import PROGRESS, prepare
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.train import train

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows syncs no folders")


class Disk:
    """Remembers what each file and folder held when it was last synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.synced: dict[int, object] = {}  # by inode: a file's bytes, a folder's names
        self.renamed: list[Path] = []
        self.unsafe: list[str] = []  # files that got their name before their bytes were safe
        self.fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.note_sync)
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self.checked(getattr(os, name)))

    def note_sync(self, descriptor: int) -> None:
        """Stand in for os.fsync."""
        self.fsync(descriptor)
        status = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(status.st_mode)
        held = os.listdir(descriptor) if is_folder else os.pread(descriptor, status.st_size, 0)
        self.synced[status.st_ino] = sorted(held) if is_folder else held

    def checked(self, rename):
        """Stand in for os.rename and os.replace."""

        def renamed(source, target):
            if not Path(target).name.startswith(".tmp-"):  # such a name promises nothing
                for path in (Path(source), *Path(source).rglob("*")):
                    if not self.has(path):
                        self.unsafe.append(f"{target}: {path.name}")
                self.renamed.append(Path(target))
            rename(source, target)

        return renamed

    def has(self, path: Path) -> bool:
        """Whether a file's bytes, or a folder's names, would survive a power cut now."""
        held = sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()
        return self.synced.get(path.stat().st_ino) == held


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


def test_a_file_is_synced_before_it_replaces_the_old_one(disk, tmp_path):
    for text in ("old", "new"):
        io.write_atomic(tmp_path / "file.json", text)
    assert disk.renamed == [tmp_path / "file.json"] * 2
    assert disk.unsafe == []


def test_all_of_a_checkpoint_is_synced_before_its_name_and_its_name_after(
    disk, tiny_config, tmp_path
):
    model = GPT(tiny_config)
    optimizer = make_optimizer(model, TrainConfig())
    model(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)).backward()
    optimizer.step()
    for step in (1, 2, 2):  # the last one takes the place of another
        saved = checkpoint.save(tmp_path / "all", model, optimizer, {"step": step, "val_loss": 1.0})
        assert disk.unsafe == []
        assert disk.renamed[-1] == saved
        assert len(list(saved.iterdir())) == 4
        assert disk.has(tmp_path / "all"), "the folder's own entry for the checkpoint"


def test_a_checkpoint_never_counts_on_metrics_that_are_not_on_the_disk(tiny_run, disk, monkeypatch):
    rows, rename = [], checkpoint.os.rename

    def rows_at_rename(source, target):
        if Path(target).name.startswith("step_"):
            metrics = Path(tiny_run.run_dir) / "metrics.jsonl"
            synced = disk.synced.get(metrics.stat().st_ino, b"")
            rows.append((checkpoint.step_of(Path(target)), synced.count(b"\n")))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rows_at_rename)
    train(tiny_run)
    assert rows == [(5, 5), (10, 10), (12, 12)]
    assert disk.unsafe == []


def test_progress_of_a_preparation_never_counts_on_shards_that_are_not_on_the_disk(
    disk, tmp_path, monkeypatch
):
    seen, replace = [], os.replace

    def shards_at_replace(source, target):
        if Path(target).name == PROGRESS:
            seen.append([disk.has(path) for path in Path(target).parent.glob("*.bin")])
        replace(source, target)

    monkeypatch.setattr(os, "replace", shards_at_replace)
    (tmp_path / "text.txt").write_text("To be, or not to be.\n" * 200)
    prepare(tmp_path / "text.txt", tmp_path / "out", "char")
    assert any(seen), "nothing was saved"
    assert all(all(shards) for shards in seen)
    assert disk.renamed[-1] == tmp_path / "out"
    assert disk.unsafe == []  # the last shard, which was shortened, too
    assert "out" in disk.synced[tmp_path.stat().st_ino]
