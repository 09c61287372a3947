"""Atomic writes, locks, syncing to disk, and progress bars."""

import dataclasses
import errno
import io
import os
import re
import shlex
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from cs336_lib import cli
from cs336_lib.config import TrainConfig
from cs336_lib.data.documents import Corpus
from cs336_lib.data.prepare import PROGRESS, prepare
from cs336_lib.io import TEMPORARY, Bar, Log, atomic, locked, write_atomic
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.training import checkpoint
from cs336_lib.training.loop import train

# --- atomic writes


@pytest.mark.parametrize("folder", [False, True])
def test_a_failed_write_leaves_the_old_content_and_no_temporary(tmp_path, folder):
    target = tmp_path / "target"
    if not folder:
        target.write_text("old")

    def fail(error):
        with atomic(target, folder=folder) as temporary:
            assert temporary.parent == tmp_path
            (temporary / "part" if folder else temporary).write_text("half")
            raise error

    with pytest.raises(OSError, match=r"target: cannot be written \(No space left\)$"):
        fail(OSError(errno.ENOSPC, "No space left"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert [path.name for path in tmp_path.iterdir()] == ([] if folder else ["target"])
    assert folder or target.read_text() == "old"


def test_an_error_names_its_file_once(tmp_path):
    inner = tmp_path / "missing" / "inner"
    with pytest.raises(OSError, match="inner") as error, atomic(tmp_path / "outer"):
        write_atomic(inner, "text")
    assert str(error.value) == f"{inner}: cannot be written (No such file or directory)"
    text = "Error while serializing: I/O error: File too large (os error 27)"
    with (
        pytest.raises(OSError, match=r"outer: cannot be written \(File too large\)$"),
        atomic(tmp_path / "outer"),
    ):
        raise SafetensorError(text)


def test_a_folder_replaces_what_a_kill_left_and_no_full_folder(tmp_path):
    (tmp_path / ".tmp-new-target").mkdir()
    (tmp_path / ".tmp-new-target" / "old").touch()
    with atomic(tmp_path / "target", folder=True) as temporary:
        (temporary / "new").touch()
    with (
        pytest.raises(OSError, match="target: cannot be written"),
        atomic(tmp_path / "target", folder=True),
    ):
        pass
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


# --- locks

HOLD = """
import sys
from pathlib import Path
from cs336_lib.io import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(lock: Path) -> subprocess.Popen:
    """Start a process that holds the lock until its stdin is closed."""
    command = [sys.executable, "-c", HOLD, str(lock)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_refused_in_one_line_and_released_by_a_kill(tmp_path):
    lock = tmp_path / "lock"
    with holder(lock) as first:
        with (
            pytest.raises(ValueError, match="another process holds this lock; wait") as error,
            locked(lock, timeout=0.2),
        ):
            pass
        assert "\n" not in str(error.value)
        first.kill()
    assert lock.exists(), "a kill leaves the file"
    with locked(lock, timeout=0.2):
        assert lock.exists()
    assert not lock.exists()


def test_a_process_that_is_about_to_end_is_waited_for(tmp_path, monkeypatch):
    with holder(tmp_path / "lock") as other:
        # It ends while the lock is waited for.
        monkeypatch.setattr("filelock._api.time.sleep", lambda seconds: other.communicate())
        with locked(tmp_path / "lock"):
            assert other.returncode == 0


def test_only_one_of_many_waiting_threads_holds_a_lock(tmp_path):
    """The lock holds although each process removes the file that the others wait for."""
    inside, most = [], []

    def work():
        for _ in range(5):
            with locked(tmp_path / "lock", timeout=-1):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 20


def test_a_lock_file_that_cannot_be_made_is_one_line(tmp_path):
    for lock in (tmp_path / ("x" * 300), Path("/proc/lock")):
        with pytest.raises(OSError, match="cannot be written") as error, locked(lock, timeout=-1):
            pass
        assert "\n" not in str(error.value)


# --- files are synced before they get their names

needs_folder_sync = pytest.mark.skipif(sys.platform == "win32", reason="Windows syncs no folders")


class Disk:
    """Record of each file's and folder's content when it was last synced."""

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
            if not Path(target).name.startswith(".tmp-"):  # a temporary name needs no sync
                for path in (Path(source), *Path(source).rglob("*")):
                    if not self.has(path):
                        self.unsafe.append(f"{target}: {path.name}")
                self.renamed.append(Path(target))
            rename(source, target)

        return renamed

    def has(self, path: Path) -> bool:
        """Return whether a file's bytes, or a folder's names, would survive a power cut now."""
        held = sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()
        return self.synced.get(path.stat().st_ino) == held


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


@needs_folder_sync
def test_a_file_is_synced_before_it_replaces_the_old_one(disk, tmp_path):
    for text in ("old", "new"):
        write_atomic(tmp_path / "file.json", text)
        assert disk.has(tmp_path), "the folder's own entry"
    assert disk.renamed == [tmp_path / "file.json"] * 2
    assert disk.unsafe == []


@needs_folder_sync
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


@needs_folder_sync
def test_a_checkpoint_never_counts_on_metrics_that_are_not_on_the_disk(tiny_run, disk, monkeypatch):
    rows, replace = [], os.replace

    def rows_at_replace(source, target):
        if Path(target).name.startswith("step_"):
            metrics = Path(tiny_run.run_dir) / "metrics.jsonl"
            synced = disk.synced.get(metrics.stat().st_ino, b"")
            rows.append((checkpoint.step_of(Path(target)), synced.count(b"\n")))
        replace(source, target)

    monkeypatch.setattr(os, "replace", rows_at_replace)
    train(tiny_run)
    assert rows == [(5, 5), (10, 10), (12, 12)]
    assert disk.unsafe == []


@needs_folder_sync
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
    (tmp_path / "raw.bin").write_bytes(b"\xff\x00" * 100)
    prepare(Corpus((tmp_path / "raw.bin",), raw=True), tmp_path / "raw")
    assert disk.renamed[-1] == tmp_path / "raw"
    assert disk.unsafe == []
    assert {"out", "raw"} <= set(disk.synced[tmp_path.stat().st_ino])


# --- progress bars and logs


class Unwritable(io.StringIO):
    """A log on a full disk."""

    def write(self, text: str = "") -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = write


def closed() -> io.StringIO:
    """A log that is closed."""
    log = io.StringIO()
    log.close()
    return log


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch):
    for log in (Unwritable(), closed(), None):
        monkeypatch.setattr(sys, "stderr", log)
        bar = Bar(range(3), mininterval=0)
        bar.set_postfix_str("loss 1.0")
        assert list(bar) == [0, 1, 2]
        assert list(Bar(range(2), leave=False)) == [0, 1]
        with pytest.raises(SystemExit) as ended:
            cli.main(["estimate", "--mfu", "2"])
        assert ended.value.code == 2


def test_a_bar_is_as_wide_as_the_terminal(monkeypatch):
    log = io.StringIO()
    log.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", log)
    list(Bar(range(3), desc="wide", delay=0, leave=True))
    assert "wide: 100%" in log.getvalue()
    assert "█" in log.getvalue() or "#" in log.getvalue()
    log.fileno = lambda: 99
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((41, fd)))
    list(Bar(range(3), desc="narrow", delay=0, leave=True, postfix="x" * 99))
    line = log.getvalue().rpartition("\r")[2].rstrip("\n")
    assert line.startswith("narrow")
    assert len(line) == 40


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The bar's clock in seconds, which a test can change to let time pass."""
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute_and_a_last_one(monkeypatch, clock):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    bar = Bar(range(100), desc="training", unit="step", leave=True)
    for step in bar:
        bar.set_postfix_str(f"loss {step}", refresh=False)
        clock[0] += 7
    assert "\r" not in log.getvalue()
    lines = log.getvalue().split("\n")
    assert lines.pop() == ""
    assert len(lines) == 1 + 100 * 7 // 35
    assert re.fullmatch(r"training: +5% 5/100 \[\d\d:\d\d<.*step.*, loss 4\]", lines[0])
    assert re.fullmatch(r"training: 100% 100/100 \[.*, loss 99\]", lines[-1])


def test_a_log_gets_no_line_of_what_was_short(monkeypatch, clock):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    list(Bar(range(3), delay=1))
    list(Bar(range(3), leave=False))
    list(Bar([], desc="nothing"))
    list(Bar(range(3), disable=True))
    assert log.getvalue() == ""
    bar = Bar(desc="without a total", unit="tok", unit_scale=True, delay=1)
    clock[0] += 31
    bar.update(5_000_000)
    bar.close()
    bar.close()
    assert re.fullmatch(r"(without a total: 5\.00Mtok \[.*\]\n)+", log.getvalue())


@pytest.fixture
def displays(monkeypatch) -> list[list[str]]:
    """What a notebook's cell displays: the states of each display."""
    monkeypatch.setattr("cs336_lib.io.in_notebook", lambda stream: True)
    found: list[list[str]] = []

    class Handle:
        def update(self, content, raw):
            self.states.append(content["text/html"])

    def display(content, raw, display_id):
        handle = Handle()
        handle.states = [content["text/html"]]
        found.append(handle.states)
        return handle

    monkeypatch.setattr("IPython.display.display", display)
    return found


def test_a_notebook_has_a_bar_that_is_not_on_stderr(displays, capsys):
    list(Bar(range(3), desc="<b> in a cell", delay=0, leave=True))
    (states,) = displays
    assert "&lt;b&gt; in a cell: 100%|" in states[-1]
    assert capsys.readouterr().err == ""


def test_a_bar_of_a_notebook_disappears(displays, clock):
    for _ in Bar(range(3), desc="sampling"):
        clock[0] += 2
    (states,) = displays
    assert "sampling:  33%" in states[0]
    assert states[-1] == f"<pre {TEMPORARY} hidden></pre>"


def test_a_short_bar_of_a_notebook_shows_nothing(displays):
    list(Bar(range(3), desc="short"))
    assert displays == []


def test_a_notebook_displays_a_note(displays):
    print("step 3: <sample>", file=Log())
    assert displays == [[f"<pre {TEMPORARY}>step 3: &lt;sample&gt;</pre>"]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_commands_work_with_a_full_or_closed_log(tiny_run):
    train(dataclasses.replace(tiny_run, max_steps=3))
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    program = f"{shlex.quote(sys.executable)} -m cs336_lib"
    flags = f"--run-dir {shlex.quote(tiny_run.run_dir)} --device cpu"
    for log in ("2>/dev/full", "2>&-"):
        done, refused = (
            subprocess.run(
                f"{program} {command} {flags} {log}",
                shell=True,
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            for command in ("eval", "evil")
        )
        assert done.returncode == 0
        assert "bits per byte" in done.stdout
        assert (refused.returncode, refused.stdout) == (2, "")


def test_training_continues_without_a_log(tiny_run, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Unwritable())
    assert train(tiny_run).finished
