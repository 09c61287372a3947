"""Nothing that happens to our files loses what was there, or passes unnoticed."""

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from cs336_lib.config import UserError
from tests.faults import (
    HOSTILE,
    THINGS,
    Killed,
    Thing,
    disk_is_full,
    little_memory,
    seal,
    watching,
)

pytest.importorskip("resource", reason="Windows has no limits of resources")


@pytest.fixture(params=THINGS)
def thing(request: pytest.FixtureRequest) -> Thing:
    return THINGS[request.param]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def versions(thing: Thing, folder: Path) -> tuple[object, object]:
    """Write both versions. The folder has the first one in the end."""
    thing.write(folder, 1)
    before = thing.read(folder)
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    thing.write(folder, 2)
    after = thing.read(folder)
    assert before != after
    put_back(folder, copy)
    return before, after


def put_back(folder: Path, copy: Path) -> None:
    """Replace a folder by its copy."""
    shutil.rmtree(folder)
    shutil.copytree(copy, folder, symlinks=True)


@pytest.mark.parametrize("fault", [Killed, disk_is_full])
def test_a_fault_at_any_write_loses_nothing(thing, folder, fault):
    before, after = versions(thing, folder)
    copy, said, faults = folder.with_name("copy"), list[str](), 0
    for at in count(0, thing.every):
        with watching(folder, at, fault) as watch, contextlib.suppress(Killed):
            try:
                thing.write(folder, 2)
            except OSError as error:
                said.append(str(error))
        if watch.writes <= at:
            break
        faults += 1
        if thing.is_whole:
            assert thing.read(folder) in (before, after), at
        thing.write(folder, 2)
        assert thing.read(folder) == after, at
        assert not list(folder.rglob(".tmp-*")), at
        put_back(folder, copy)
    assert faults >= 3
    assert len(said) >= 3 or fault is Killed
    for line in said:
        assert "\n" not in line
        assert "No space left on device" in line
        assert "cannot be written (" in line or thing is THINGS["run"]


def damaged(good: bytes, random_numbers: random.Random, count: int) -> Iterator[bytes]:
    """Yield a file with flipped bits, cut off, with a part of zeros, and lengthened."""
    bits = range(8 * len(good))
    for bit in random_numbers.sample(bits, min(len(bits), count)):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
    for _ in range(min(count, 15)):
        start = random_numbers.randrange(len(good))
        rest = good[start : start + 512]
        yield good[:start]
        yield good[:start] + b"\0" * len(rest) + good[start + 512 :]
        yield good + random_numbers.randbytes(1 + start % 20)


def test_no_damage_passes_unnoticed(thing, folder, capsys):
    thing.write(folder, 1)
    thing.write(folder, 2)
    right, seen, said = thing.read(folder), 0, list[str]()
    older = [right]
    if thing is THINGS["checkpoint"]:  # the one before takes the place of a damaged one
        shutil.copytree(folder, folder.with_name("older"))
        shutil.rmtree(folder.with_name("older") / "step_00000002")
        older.append(thing.read(folder.with_name("older")))
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        good = path.read_bytes()
        count = 4 if not thing.is_sealed else 1000 if thing is THINGS["tokenizer"] else 60
        for bad in damaged(good, random.Random(path.name), count):
            path.write_bytes(bad)
            try:
                found = thing.read(folder)
            except (UserError, FileNotFoundError) as error:
                said.append(str(error))
                continue
            assert found in older or not thing.is_sealed, (path.name, bad[:60])
            seen += found != right
        path.write_bytes(good)
    assert thing.read(folder) == right
    assert seen + len(said) > 5
    assert not any("\n" in line for line in said)


def test_nothing_in_a_strangers_file_runs_or_leads_out(thing, folder, tmp_path, capsys):
    marker = tmp_path / "executed"
    thing.write(folder, 1)
    thing.write(folder, 2)
    right, said, copy = thing.read(folder), list[str](), tmp_path / "copy"
    shutil.copytree(folder, copy)
    has_older = bool(list(folder.rglob("step_*")))  # which takes the place of a bad checkpoint
    for name in needed(thing, folder, right):
        for kind, put in HOSTILE.items():
            put(folder / name, marker)
            if name.name != "manifest.json":
                seal(folder)
            with watching(folder) as watch, little_memory():
                try:
                    found = thing.read(folder)
                except (UserError, FileNotFoundError) as error:
                    said.append(str(error))
                else:
                    assert has_older, (name, kind)
                    assert found != right, (name, kind)
            assert watch.executed == [], (name, kind)
            assert not marker.exists(), (name, kind)
            put_back(folder, copy)
    assert len(said) >= len(HOSTILE) - 1
    assert not any("\n" in line for line in said)


def needed(thing: Thing, folder: Path, right: object) -> Iterator[Path]:
    """Yield the files without which a user gets something else, or nothing."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name == "metrics.jsonl":  # which `cs336 train` reads from its own run
            continue
        aside = path.rename(folder.with_name("aside"))
        try:
            is_needed = thing.read(folder) != right
        except (UserError, FileNotFoundError):
            is_needed = True
        aside.rename(path)
        if is_needed:
            yield path.relative_to(folder)


class Disk:
    """Record of each file's and folder's content when it was last synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.synced: dict[int, object] = {}  # by inode: a file's bytes, a folder's names
        self.renamed: list[Path] = []
        self.unsafe: list[str] = []  # what got its name before its bytes were safe
        self.fsync, self.replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", self.note_sync)
        monkeypatch.setattr(os, "replace", self.checked_replace)

    def note_sync(self, descriptor: int) -> None:
        """Stand in for os.fsync."""
        self.fsync(descriptor)
        status = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(status.st_mode)
        held = os.listdir(descriptor) if is_folder else os.pread(descriptor, status.st_size, 0)
        self.synced[status.st_ino] = sorted(held) if is_folder else held

    def checked_replace(self, source: Path, target: Path) -> None:
        """Stand in for os.replace. Rows and shards must be safe before what relies on them."""
        source, target = Path(source), Path(target)
        relied_on = [source, *source.rglob("*")]
        if target.name.startswith("step_"):
            relied_on += target.parents[1].glob("metrics.jsonl")
        if target.name == "progress.json":
            relied_on += target.parent.glob("*.bin")
        self.unsafe += [f"{target}: {path}" for path in relied_on if not self.has(path)]
        self.replace(source, target)
        self.renamed.append(target)

    def has(self, path: Path) -> bool:
        """Return whether a file's bytes, or a folder's names, would survive a power cut now."""
        held = sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()
        return self.synced.get(path.stat().st_ino) == held


def test_everything_is_synced_before_it_gets_its_name(thing, folder, monkeypatch):
    disk = Disk(monkeypatch)
    for version in (1, 2, 2):  # the last one takes the place of another
        thing.write(folder, version)
    assert disk.unsafe == []
    assert disk.renamed
    for path in disk.renamed:
        if path.exists():  # the last one in each folder, so its own entry is safe, too
            assert path.name in disk.synced[path.parent.stat().st_ino], path
