import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

from cs336_lib.config import TrainConfig
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.training import checkpoint


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
    with pytest.raises(ValueError, match=r"holds 'transformer\.h\.1.*this model doesn't have"):
        checkpoint.load_weights(path, GPT(dataclasses.replace(tiny_config, n_layer=1)))
    with pytest.raises(ValueError, match=r"shape \(64, 32\), \(64, 16\) expected"):
        checkpoint.load_weights(path, GPT(dataclasses.replace(tiny_config, n_embd=16)))
    path.write_text("no safetensors")
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        checkpoint.load_weights(path, GPT(tiny_config))


def test_prune_keeps_the_newest_the_best_and_multiples(trained, tmp_path):
    for step, loss in enumerate([3.0, 1.0, 2.0, None, 1.5, None], start=1):
        save(tmp_path, trained, step, loss)
    (tmp_path / ".tmp-step_9").mkdir()
    checkpoint.prune(tmp_path, keep=2, keep_every=3)
    kept = [f"step_0000000{n}" for n in (2, 3, 5, 6)]
    assert sorted(p.name for p in tmp_path.iterdir()) == kept
