"""The ladder: variants that compute the same, rungs that say what they cannot do, reports."""

from pathlib import Path

import pytest
import torch

from cs336_course.one_file import assemble
from cs336_course.pages.gpt2_speed import ladder_step, profiled_step, speed_ladder
from cs336_course.pages.gpt2_speed.ladder_step import (
    TINY,
    Parts,
    Settings,
    Step,
    build_model,
    matmul_precision,
    training_batch,
)
from cs336_course.pages.gpt2_speed.speed_ladder import RUNGS, Ladder, Row
from cs336_course.shared.activation_memory import LiveBytes
from cs336_lib import accounting
from cs336_lib.model import GPT
from cs336_lib.system import hardware

CPU = torch.device("cpu")
NAMES = [rung.name for rung in RUNGS]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(scope="module")
def parts() -> Parts:
    """The parts from the notebooks' solutions."""
    return Parts(assemble.module("08", NOTEBOOKS), assemble.module("09", NOTEBOOKS))


@pytest.fixture
def without_compiling(monkeypatch):
    """torch.compile as on a machine that has no C++ compiler."""

    def refuse(*args, **kwargs):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", refuse)


def losses(parts: Parts, settings: Settings, steps: int = 3) -> list[float]:
    step = Step(settings, TINY, CPU, parts)
    return [step().item() for _ in range(steps)]


def test_every_variant_has_the_same_losses(parts):
    first = losses(parts, Settings())
    assert first[0] > first[1] > first[2]
    for settings in (
        Settings(attention="flash"),
        Settings(padded=True),
        Settings(fused=True),
        Settings(precision="tf32"),
        Settings(attention="flash", padded=True, fused=True, library=True),
    ):
        assert losses(parts, settings) == pytest.approx(first, rel=1e-5), settings


def test_bf16_has_them_up_to_its_rounding(parts):
    low, exact = losses(parts, Settings(precision="bf16")), losses(parts, Settings())
    assert low == pytest.approx(exact, rel=1e-2)
    assert low != exact


def test_variants_start_from_equal_weights_and_differ_where_they_say(parts):
    plain = build_model(parts, TINY.config, Settings())
    library = build_model(parts, TINY.config, Settings(attention="flash", padded=True))
    both = Settings(attention="flash", padded=True, library=True)
    assert type(build_model(parts, TINY.config, both)) is GPT
    assert len(plain.lm_head.weight) == 257
    assert len(library.lm_head.weight) == 320
    assert plain.lm_head.weight is plain.transformer.wte.weight  # still tied
    assert torch.equal(plain.lm_head.weight, library.lm_head.weight[:257])
    names = set(plain.state_dict())
    assert names == set(library.state_dict())


def test_building_a_model_leaves_the_global_generator_alone(parts):
    before = torch.get_rng_state()
    build_model(parts, TINY.config, Settings())
    assert torch.equal(before, torch.get_rng_state())


def test_written_out_attention_is_attention(parts):
    x = torch.randn(2, 64, 64)
    written_out, flash = (
        build_model(parts, TINY.config, Settings(attention=how)).transformer.h[0].attn
        for how in ("written out", "flash")
    )
    torch.testing.assert_close(written_out(x), flash(x))


def test_the_batch_is_real_text_one_token_apart():
    x, y = training_batch(TINY, CPU)
    assert x.shape == y.shape == (2, 64)
    assert torch.equal(x.flatten()[1:], y.flatten()[:-1])
    assert int(torch.maximum(x.max(), y.max())) < 257
    full, _ = training_batch(ladder_step.Shape(GPT_LIKE, 1), CPU)
    assert int(full.max()) > 257


GPT_LIKE = ladder_step.GPTConfig(block_size=32, n_layer=1, n_head=1, n_embd=8)


def test_few_ids_are_shared_by_the_rare_tokens():
    tiny = ladder_step.Shape(ladder_step.GPTConfig(64, 5, 1, 1, 8), 2)
    x, _ = training_batch(tiny, CPU)
    counts = torch.bincount(x.flatten(), minlength=5)
    assert counts[4] == counts.max()  # all that are not among the four commonest
    assert counts[0] >= counts[3]


def test_matmul_precision_comes_back():
    before, seen = torch.get_float32_matmul_precision(), []

    def fail_inside():
        with matmul_precision("tf32"):
            seen.append(torch.get_float32_matmul_precision())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert seen == ["high"]
    assert torch.get_float32_matmul_precision() == before


def test_shape_for_a_fast_gpu_is_gpt2_and_fits(monkeypatch):
    assert ladder_step.shape_for(CPU) == ladder_step.SMALL
    gpu, rate = torch.device("cuda", 0), 4e12
    monkeypatch.setattr(hardware, "measured_matmul_flops", lambda device, dtype: rate)
    for free, batch in ((80e9, 16), (24e9, 8), (1e9, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80e9))
        shape = ladder_step.shape_for(gpu)
        assert shape.batch == batch
        assert accounting.count_parameters(shape.config) == 124_439_808
    assert "1024 tokens, 12 layers" in str(shape)
    rate = 1e12
    assert ladder_step.shape_for(gpu) == ladder_step.SMALL


def test_peak_memory_is_what_live_bytes_sees(parts):
    step = Step(Settings(attention="flash", fused=True), TINY, CPU, parts)
    step()
    measured = speed_ladder.peak_bytes(step)
    state = [v for kept in step.optimizer.state.values() for v in kept.values()]
    known = [*step.model.parameters(), *state, step.x, step.y]
    with LiveBytes(known) as live:
        step()
    assert measured == pytest.approx(live.peak, rel=0.05)


def test_a_row_of_numbers(parts):
    row = speed_ladder.measure("fp32", Settings(), TINY, CPU, parts, repeats=2, warmup=1)
    assert row.tokens_per_sec == pytest.approx(128 / row.ms * 1e3)
    assert len(row.losses) == 3
    assert row.loss == row.losses[-1]
    assert 0 < row.memory_gib < 0.1
    assert row.mfu > 0


def test_the_ladder_without_a_compiler(monkeypatch, without_compiling, parts):
    monkeypatch.setattr(hardware, "has_bf16", lambda device: False)
    climbing = Ladder(TINY, CPU, parts, repeats=1)
    for name in NAMES:
        assert climbing.next.name == name
        climbing.climb()
    rows = {row.name: row for row in climbing.rows}
    assert rows["TF32"].note == "no effect on this device"
    assert rows["TF32"].losses == pytest.approx(rows["fp32"].losses, rel=1e-6)
    assert rows["bf16"].ms is None
    assert "left out" in rows["bf16"].note
    assert rows["compile"].ms is None
    assert rows["compile"].note == "left out: no C++ compiler found"
    assert rows["our library"].settings == Settings(
        "tf32", attention="flash", padded=True, fused=True, library=True
    )
    assert all(speed_ladder.same_loss(row, rows["fp32"]) for row in climbing.rows if row.ms)
    with pytest.raises(ValueError, match="all 8 rungs"):
        climbing.climb()


def test_a_rung_with_another_loss_is_refused(monkeypatch, parts):
    climbing = Ladder(TINY, CPU, parts, repeats=1)
    climbing.climb()
    real = ladder_step.build_model

    def broken(parts, config, settings):
        model = real(parts, config, settings)
        torch.nn.init.zeros_(model.transformer.wpe.weight)
        torch.nn.init.normal_(model.transformer.wte.weight, std=0.5)
        return model

    monkeypatch.setattr(ladder_step, "build_model", broken)
    with pytest.raises(ValueError, match="TF32 has losses"):
        climbing.climb()


def test_same_loss_is_as_strict_as_the_precision():
    first = Row("fp32", losses=(10.0, 9.0))
    near = (10.005, 9.005)
    assert not speed_ladder.same_loss(Row("x", losses=near), first)
    assert speed_ladder.same_loss(Row("x", losses=near, settings=Settings("bf16")), first)
    assert not speed_ladder.same_loss(Row("left out"), first)
    assert not speed_ladder.same_loss(Row("x"), Row("y"))


def test_the_published_ladder_is_as_printed():
    assert list(speed_ladder.A6000_MS) == list(speed_ladder.A6000_LOSS) == NAMES[:6]
    assert [round(ms) for ms in speed_ladder.A6000_MS.values()] == [807, 539, 415, 226, 164, 151]


# Profiles.


def test_the_profile_covers_the_step(parts):
    spans = profiled_step.profile_step(Step(Settings(), TINY, CPU, parts))
    assert set(profiled_step.ms_by(spans, "phase")) == set(profiled_step.PHASES)
    assert set(profiled_step.ms_by(spans, "kind")) == set(profiled_step.KINDS)
    assert all(span.ms > 0 and span.start >= 0 for span in spans)
    starts = [span.start for span in spans]
    assert starts == sorted(starts)
    by_op = profiled_step.ms_by(spans, "op")
    assert list(by_op.values()) == sorted(by_op.values(), reverse=True)
    working = profiled_step.workers(spans)
    assert {"addmm", "bmm", "_softmax"} <= {span.op for span in working}
    assert "view" not in {span.op for span in working}
    addmm = next(span for span in working if span.op == "addmm")
    assert addmm.inputs == "192, 128x64, 64x192"


def test_kinds():
    cases = [
        ("aten::mm", "backward", [[8, 8], [8, 8]], "matmul"),
        ("aten::bmm", "forward", [[4, 8, 2], [4, 2, 8]], "attention"),
        ("aten::_log_softmax", "forward", [[8, 50]], "loss"),
        ("aten::_softmax", "forward", [[2, 2, 8, 8]], "attention"),
        ("aten::div", "forward", [[2, 2, 8, 8], []], "attention"),
        ("aten::div", "forward", [[8, 9]], "norm, GELU, other"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "forward", [], "attention"),
        ("aten::_efficient_attention_forward", "forward", [], "attention"),
        ("aten::_flash_attention_backward", "backward", [], "attention"),
        ("aten::_cudnn_attention_forward", "forward", [], "attention"),
        ("aten::mul", "update", [[8, 8]], "optimizer"),
    ]
    found = [(*case[:3], profiled_step.kind_of(*case[:3])) for case in cases]
    assert found == cases


# Reports.


def test_a_report_has_a_row_for_each_rung(parts):
    climbing = Ladder(TINY, CPU, parts, repeats=1)
    climbing.climb()
    climbing.rows.append(Row("TF32", note="left out"))
    written = speed_ladder.report(climbing)
    assert set(written) == {"device", "torch", "shape", "rungs"}
    assert [rung["name"] for rung in written["rungs"]] == ["fp32", "TF32"]
    assert written["rungs"][0]["ms"] == climbing.rows[0].ms
    assert written["rungs"][1]["ms"] is None
