"""Simulated steps agree with published ones, and their pipelines with the theory."""

import statistics
from dataclasses import replace

import pytest

from cs336_lib import architecture, cli, published, simulate, step_report
from cs336_lib.communication import LINKS, Layout, bubble
from cs336_lib.hardware import DATASHEET
from cs336_lib.simulate import Cluster, Work

STEPS = published.steps()
H100S = Cluster(DATASHEET["h100"], LINKS["nvlink4"], LINKS["infiniband-ndr"])


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """The relative error of the MFU of each published step."""
    return {
        name: simulate.simulate(step.work, step.cluster).mfu / step.mfu - 1
        for name, step in STEPS.items()
    }


def test_the_median_error_is_small_on_steps_that_were_not_fitted(errors):
    fitted, judged = list(errors.values())[::2], list(errors.values())[1::2]
    assert len(judged) == 13
    assert statistics.median(map(abs, fitted)) < 0.05
    assert statistics.median(map(abs, judged)) < 0.05


def test_no_step_is_hidden(errors):
    far = {name for name, error in errors.items() if abs(error) > 0.15}
    assert far == {"mt-nlg-2240", "mt-nlg-2800", "mt-nlg-3360"}  # DeepSpeed without interleaving
    assert max(map(abs, errors.values())) < 0.35


def test_the_page_has_every_step():
    page = published.DATA.parent / "docs" / "published_runs.md"
    assert published.step_table() in page.read_text()


def work_of(layout: Layout, **settings) -> Work:
    """A model whose layers all cost the same, so that theory gives the bubble."""
    shape = architecture.Architecture(
        n_layer=48, n_embd=4096, n_head=32, n_kv_head=32, head_dim=128, vocab_size=1,
        block_size=4096, mlp_width=11008,
    )  # fmt: skip
    return Work(shape, layout, 4096, **settings)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(pp=4, micro_batches=8),
        Layout(pp=4, micro_batches=8, schedule="gpipe"),
        Layout(pp=8, micro_batches=64),
        Layout(pp=4, micro_batches=8, schedule="interleaved", chunks=3),
        Layout(pp=8, micro_batches=16, schedule="interleaved", chunks=2),
        Layout(micro_batches=5),
    ],
)
def test_the_bubble_of_the_events_is_the_one_of_the_formula(layout):
    instant = replace(LINKS["nvlink4"], bandwidth=1e18)
    fast = Cluster(DATASHEET["h100"], instant, instant)
    step = simulate.simulate(work_of(layout), fast)
    assert step.bubble / step.passes == pytest.approx(bubble(layout), rel=1e-3, abs=1e-9)


def test_every_pass_runs_once_on_every_stage():
    layout = Layout(pp=4, micro_batches=8, schedule="interleaved", chunks=2)
    for stage in range(4):
        passes = list(simulate.order(layout, stage))
        assert len(passes) == len(set(passes)) == 2 * 8 * 2
        seen = set()
        for one in passes:  # the backward pass comes after its forward pass
            seen.add(one)
            assert one.forward or one._replace(forward=True) in seen


def test_a_slow_stage_delays_the_step():
    layout = Layout(pp=4, micro_batches=32)
    usual, slow = (
        simulate.simulate(work_of(layout, straggler=f), H100S).seconds for f in (1.0, 1.5)
    )
    assert 1.3 < slow / usual < 1.5  # nearly all of its passes are in the way


def test_layers_of_uneven_chunks():
    assert simulate.layers_of(8, 4) == [2, 2, 2, 2]
    assert simulate.layers_of(126, 128) == [0, *[1] * 126, 0]
    assert simulate.layers_of(10, 4) == [2, 3, 3, 2]


def test_goodput_is_best_at_youngs_interval():
    best = simulate.best_interval(16384, 60)
    values = [simulate.goodput(16384, 60, 600, best * factor) for factor in (0.5, 0.9, 1, 1.1, 2)]
    assert max(values) == values[2]
    assert simulate.goodput(8, 60, 600, simulate.best_interval(8, 60)) > 0.99
    between = 1 / simulate.FAILURES_PER_DEVICE_HOUR / 16384
    assert between == pytest.approx(54 * 24 / 419)  # hours


def test_the_sweep_keeps_within_memory_and_sorts_by_time():
    shape = architecture.model("llama3-8b").architecture
    found = simulate.sweep(Work(shape, Layout(), 8192), H100S, 16, 32)
    assert len(found) > 10
    assert all(sum(simulate.memory(work).values()) <= 72e9 for work, _ in found)
    seconds = [step.seconds for _, step in found]
    assert seconds == sorted(seconds)
    assert all(work.layout.devices == 16 for work, _ in found)


def test_memory_is_sharded_by_stage():
    shape = architecture.model("llama3-8b").architecture
    by_stage = [
        simulate.memory(Work(shape, Layout(dp=8, zero=zero), 8192)) for zero in (0, 1, 2, 3)
    ]
    parameters = architecture.count_parameters(shape)
    assert by_stage[0]["weights"] == pytest.approx(2 * parameters, rel=1e-3)
    assert by_stage[0]["state"] == pytest.approx(12 * parameters, rel=1e-3)
    for zero, kind in ((1, "state"), (2, "gradients"), (3, "weights")):
        assert by_stage[zero][kind] == by_stage[0][kind] / 8
        assert by_stage[zero - 1][kind] == by_stage[0][kind]


def test_the_command_prints_a_step_and_a_sweep(capsys):
    layout = ["--tp", "8", "--pp", "16", "--chunks", "8", "--zero", "2", "--batch", "2048"]
    model = ["--model", "llama3-405b", "--gpus", "16384", "--recompute", "none"]
    cli.main(["simulate", *model, *layout])
    text = capsys.readouterr().out
    for line in ("dp 128, tp 8, pp 16", "MFU", "it fits", "one in 3.1 hours"):
        assert line in text
    cli.main(["simulate", "--model", "llama3-8b", "--gpus", "8"])
    assert "layouts fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 10, "tp": 4}, r"10 GPUs can't be divided by tp 4 x pp 1 x cp 1 = 4; 8 can"),
        ({"gpus": 8, "tp": 1, "batch": 20}, "batch 20 isn't a multiple of 8.*; 16 is"),
        ({"gpus": 3, "tp": 3}, "32 query heads can't be split over tp 3; the nearest is 2"),
        ({"model": "llama3-405b", "gpus": 8}, "no layout of Llama 3.1 405B fits on 8 x NVIDIA"),
        ({"inner": "string"}, "inner 'string' is unknown; one of nvlink3"),
        ({"straggler": 0.5}, "straggler is 0.5; 1 to 1000000 expected"),
    ],
)
def test_what_does_not_fit_is_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        step_report.simulation(**options)
    assert "\n" not in str(caught.value)
