"""A corrupt checkpoint is detected and named, and the one before it is used."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from cs336_lib.training import checkpoint
from cs336_lib.training.loop import train

FILES = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.STATE, checkpoint.MANIFEST)


@pytest.fixture
def run(tiny_run):
    """The config, set to resume, of a finished run with checkpoints at steps 5, 10 and 12."""
    train(dataclasses.replace(tiny_run, keep_checkpoints=3))
    return dataclasses.replace(tiny_run, resume=True)


def folder_of(config) -> Path:
    return Path(config.run_dir) / "checkpoints"


def steps_kept(config) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.checkpoints(folder_of(config))]


def test_a_foreign_checkpoint_is_noticed(run, capsys):
    five, _, newest = checkpoint.checkpoints(folder_of(run))
    shutil.copytree(five, folder_of(run) / "step_00000099")
    assert checkpoint.newest_valid(folder_of(run)) == newest
    assert "step_00000099: state.json is that of step 5" in capsys.readouterr().err
    shutil.rmtree(folder_of(run) / "step_00000099")
    # Other files in the folder are left alone.
    shutil.copytree(five, folder_of(run) / "step_00000005 (copy)")
    (folder_of(run) / "step_00000098").write_text("a file")
    assert checkpoint.newest_valid(folder_of(run)) == newest
    assert "step_00000098: manifest.json cannot be read" in capsys.readouterr().err
    assert (folder_of(run) / "step_00000005 (copy)").is_dir()


def test_a_run_continues_from_the_one_before_and_ends_the_same(run, capsys):
    newest = checkpoint.checkpoints(folder_of(run))[-1]
    undamaged = {file: (newest / file).read_bytes() for file in FILES}
    for name in (checkpoint.OPTIMIZER, checkpoint.MANIFEST):
        (newest / name).write_bytes(b"\0" * 100)
        result = train(run)
        assert f"{newest}: {name} " in capsys.readouterr().err
        assert steps_kept(run)[-2:] == [10, 12]
        assert [row["step"] for row in result.metrics] == list(range(12))
        assert {file: (newest / file).read_bytes() for file in FILES} == undamaged
        kept = folder_of(run) / "corrupt-step_00000012" / name
        assert kept.read_bytes() == b"\0" * 100, "the corrupt one is kept"


def test_where_none_is_good_nothing_is_overwritten(run, capsys):
    rows = (Path(run.run_dir) / "metrics.jsonl").read_bytes()
    for path in checkpoint.checkpoints(folder_of(run)):
        (path / checkpoint.MODEL).write_bytes(b"")
    before = sorted(path.name for path in folder_of(run).iterdir())
    with pytest.raises(ValueError, match="all checkpoints are corrupt") as error:
        train(run)
    assert "\n" not in str(error.value)
    assert capsys.readouterr().err.count("model.safetensors has another checksum") == len(before)
    assert sorted(path.name for path in folder_of(run).iterdir()) == before
    assert (Path(run.run_dir) / "metrics.jsonl").read_bytes() == rows
