"""Checkpoints are complete, others can read them, and a corrupt one is named and left aside."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cs336_lib.config import TrainConfig
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.training import checkpoint
from cs336_lib.training.loop import train


@pytest.fixture
def trained(tiny_config):
    """A model and its optimizer after a few steps."""
    model = GPT(tiny_config)
    optimizer = make_optimizer(model, TrainConfig())
    idx = torch.randint(50, (4, 16))
    for _ in range(3):
        model(idx, idx.roll(-1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def save(folder, trained, step, val_loss=None):
    state = {"step": step, "val_loss": val_loss, "model": {}}
    return checkpoint.save(folder, *trained, state)


def test_files_are_safetensors_and_json_that_others_may_read(trained, tmp_path):
    path = save(tmp_path, trained, 1)
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}
    assert json.loads((path / "state.json").read_text())["step"] == 1
    names = set(load_file(path / "model.safetensors"))
    assert {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"} <= names
    assert not any("_orig_mod" in name or name.startswith("module.") for name in names)
    (tmp_path / "ordinary").write_text("")
    modes = {file.stat().st_mode for file in path.iterdir()}
    assert modes == {(tmp_path / "ordinary").stat().st_mode}


def test_weights_of_another_model_are_named(trained, tiny_config, tmp_path):
    path = save(tmp_path, trained, 1) / "model.safetensors"
    with pytest.raises(ValueError, match=r"holds no transformer\.h\.2"):
        checkpoint.load_weights(path, GPT(dataclasses.replace(tiny_config, n_layer=3)))
    with pytest.raises(ValueError, match=r"shape \(64, 32\), \(64, 16\) expected"):
        checkpoint.load_weights(path, GPT(dataclasses.replace(tiny_config, n_embd=16)))


def test_prune_keeps_the_newest_the_best_and_multiples(trained, tmp_path):
    for step, loss in enumerate([3.0, 1.0, 2.0, None, 1.5, None], start=1):
        save(tmp_path, trained, step, loss)
    (tmp_path / ".tmp-step_9").mkdir()
    checkpoint.prune(tmp_path, keep=2, keep_every=3)
    kept = [f"step_0000000{n}" for n in (2, 3, 5, 6)]
    assert sorted(p.name for p in tmp_path.iterdir()) == kept


FILES = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.STATE, checkpoint.MANIFEST)


@pytest.fixture
def run(tiny_run):
    """The config, set to resume, of a finished run with checkpoints at steps 5, 10 and 12."""
    train(dataclasses.replace(tiny_run, keep_checkpoints=3))
    return dataclasses.replace(tiny_run, resume=True)


def folder_of(config) -> Path:
    return Path(config.run_dir) / "checkpoints"


def test_a_foreign_checkpoint_is_noticed(run, capsys):
    five, _, newest = checkpoint.checkpoints(folder_of(run))
    shutil.copytree(five, folder_of(run) / "step_00000099")
    assert checkpoint.newest_valid(folder_of(run)) == newest
    assert "step_00000099: state.json is that of step 5" in capsys.readouterr().err
    shutil.rmtree(folder_of(run) / "step_00000099")
    shutil.copytree(five, folder_of(run) / "step_00000005 (copy)")
    assert checkpoint.newest_valid(folder_of(run)) == newest


def test_a_run_continues_from_the_one_before_and_ends_the_same(run, capsys):
    newest = checkpoint.checkpoints(folder_of(run))[-1]
    undamaged = {file: (newest / file).read_bytes() for file in FILES}
    for name in (checkpoint.OPTIMIZER, checkpoint.MANIFEST):
        (newest / name).write_bytes(b"\0" * 100)
        result = train(run)
        assert f"{newest}: {name} " in capsys.readouterr().err
        steps = [checkpoint.step_of(path) for path in checkpoint.checkpoints(newest.parent)]
        assert steps[-2:] == [10, 12]
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
