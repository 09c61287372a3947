"""The incident of notebook 06: every kind of evidence agrees with the run that died."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cs336_course.pages.training_loop import incident as incident_module
from cs336_course.pages.training_loop import run_with_nan
from cs336_course.pages.training_loop.exercises import autocast_dtypes
from cs336_course.pages.training_loop.incident import Incident
from cs336_lib.config import UserError

TEXT = "One page of a play, with some more characters than it needs!\n" * 40_000


@pytest.fixture(scope="module")
def incident():
    """An incident whose run has only a few steps before the checkpoint, so that it is quick."""
    with pytest.MonkeyPatch.context() as patch:
        pages = run_with_nan.Pages(TEXT)
        patch.setattr(run_with_nan, "SAVED_STEP", 40)
        short = run_with_nan.train(pages, 41)
        model = run_with_nan.make_model(pages.vocab)
        optimizer = run_with_nan.make_optimizer(model)
        model.load_state_dict(short.checkpoint["model"])
        optimizer.load_state_dict(short.checkpoint["optimizer"])
        checkpoint = short.checkpoint | {"step": 8_990}
        log = run_with_nan.train(pages, 9_005, checkpoint=checkpoint)
        losses = np.concatenate([np.full(8_990, 2.0), log.losses])
        norms = np.concatenate([np.full(8_990, 0.5), log.grad_norms])
        recorded = run_with_nan.Log(losses, norms, losses, checkpoint)
        patch.setattr(incident_module, "staged", lambda: (pages, recorded))
        patch.setattr(incident_module, "SAVED_STEP", 8_990)
        yield Incident()


def test_every_request_is_counted_and_printed(incident, capsys):
    before = len(incident.requests)
    incident.request("batch", 9_000)
    incident.request("file")
    printed = capsys.readouterr().out
    assert "'" + 32 * "!" + "', 1 different" in printed
    assert [r.split()[0] for r in incident.requests[before:]] == ["batch", "file"]
    assert f"request {before + 2}: file" in printed


def test_what_the_page_shows_is_printed_and_not_counted(incident, capsys):
    before = len(incident.requests)
    incident.show("batch", 9_000)
    assert "batch 9,000\n'" + 32 * "!" in capsys.readouterr().out
    assert len(incident.requests) == before


def test_a_request_that_makes_no_sense_is_refused_and_not_counted(incident):
    before = len(incident.requests)
    for given, changes in (
        (("weather",), {}),
        (("rows", 5, 90_000), {}),
        (("batch", -1), {}),
        (("gradient", 12), {}),
        (("tensors", 9_001), {}),
        (("replay",), {}),
        (("replay",), {"luck": 1}),
    ):
        with pytest.raises(UserError):
            incident.request(*given, **changes)
    assert len(incident.requests) == before


def test_the_tensors_are_those_of_autocast(incident):
    model, (x, y) = incident.model_before(8_999), incident.pages.batch(8_999)
    seen = incident_module.tensors_of_step(model, x, y)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
        loss = F.cross_entropy(logits, y)
    (loss * run_with_nan.CONFIG.scale).backward()
    assert torch.equal(logits, seen["linear 2"])
    assert logits.dtype == seen["linear 2"].dtype == torch.float16
    for layer, name in ((1, "weight 1"), (3, "weight 2")):
        gradient = seen[f"scaled gradient of {name}"]
        assert gradient.dtype == torch.float16
        torch.testing.assert_close(model[layer].weight.grad, gradient.float(), rtol=2e-3, atol=1.0)


def test_the_gradient_is_unscaled_and_complete(incident):
    sizes = incident.request("gradient", 8_999)
    model = run_with_nan.make_model(incident.pages.vocab)
    assert len(sizes) == sum(p.numel() for p in model.parameters())
    norm = math.sqrt((sizes.astype(float) ** 2).sum())
    assert norm == pytest.approx(incident.log.grad_norms[8_999], rel=0.02)


def test_the_checkpoint_is_a_copy(incident):
    saved = incident.request("checkpoint")
    saved["model"]["0.weight"].zero_()
    assert incident.log.checkpoint["model"]["0.weight"].abs().max() > 0


def test_only_what_comes_before_the_infinity_saves_the_run(incident):
    # This young model's gradients are smaller, so a larger scale makes the page as deadly.
    sizes = incident.see_gradient(9_000)[1]
    scale = 2.0 ** math.ceil(math.log2(65_504 / sizes.max()) + 0.5)
    fates = {
        "as it was": {},
        "clip": {"clip": 1.0},
        "rate": {"rate": 0.01},
        "page": {"page": False},
        "quarter": {"scale": scale / 4},
        "windows": {"windows": 4},
        "bf16": {"dtype": torch.bfloat16},
        "skip": {"skip": True},
    }
    lives = {
        name: math.isfinite(incident.loss_after(**{"scale": scale} | change))
        for name, change in fates.items()
    }
    assert lives == {name: name in ("page", "quarter", "windows", "bf16", "skip") for name in fates}


def test_the_repair_skips_the_page(incident, monkeypatch):
    monkeypatch.setattr(run_with_nan, "LAST_STEP", 9_010)
    sizes = incident.see_gradient(9_000)[1]
    scale = 2.0 ** math.ceil(math.log2(65_504 / sizes.max()) + 0.5)
    config = run_with_nan.Config(scale=scale)
    monkeypatch.setattr(incident_module, "CONFIG", config)
    log = incident.repair(run_with_nan.finish_and_adapt)
    assert np.isfinite(log.losses).all()
    assert log.scales[[9_000 - 8_990, 9_001 - 8_990]].tolist() == [scale, scale / 2]


def test_the_exercise_on_autocast_says_what_pytorch_does():
    embedding, linear, head = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 7)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *linear.parameters()])
    ids, y = torch.arange(6).view(2, 3), torch.arange(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = embedding(ids)
        r = h * (h.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        a = linear(r)
        a.retain_grad()
        s = a.pow(2).mean(-1)
        logits = head(h + a)
        loss = F.cross_entropy(logits.flatten(0, 1), y)
        both = h + a
    loss.backward()
    optimizer.step()
    seen = {"h": h, "r": r, "a": a, "h + a": both, "s": s, "logits": logits, "loss": loss}
    seen |= {
        "gradient of a": a.grad,
        "gradient of linear.weight": linear.weight.grad,
        "exp_avg of linear.weight": optimizer.state[linear.weight]["exp_avg"],
    }
    names = {torch.float32: "fp32", torch.bfloat16: "bf16"}
    answer = autocast_dtypes.build(autocast_dtypes.solution)
    assert {name: names[tensor.dtype] for name, tensor in seen.items()} == answer
