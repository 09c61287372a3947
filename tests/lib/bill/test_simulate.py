"""Simulated steps agree with published ones, and their pipelines with the theory."""

import re
from dataclasses import fields, replace

import pytest

from cs336_course.shared import published_runs
from cs336_lib import accounting, cli
from cs336_lib.bill import models, simulate, text
from cs336_lib.bill.simulate import Cluster, Efficiency, Workload
from cs336_lib.bill.traffic import Layout
from cs336_lib.config import Shape, SimulateConfig, UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json
from cs336_lib.system.datasheets import DATASHEET, LINKS
from tools import fit_simulator, published_tables

STEPS = published_runs.steps()
H100S = Cluster(DATASHEET["h100"], LINKS["nvlink4"], LINKS["infiniband-ndr"])
INSTANT = replace(LINKS["nvlink4"], bandwidth=1e18)
FIT = read_json(DATA / "simulator_fit.json")


def work_of(layout: Layout, **settings) -> Workload:
    """A model whose layers all cost the same, so that theory gives the bubble."""
    shape = accounting.Architecture(
        n_layer=48, n_embd=4096, n_head=32, n_kv_head=32, head_dim=128, vocab_size=1,
        block_size=4096, mlp_width=11008,
    )  # fmt: skip
    return Workload(shape, layout, 4096, **settings)


# Published steps


def test_the_constants_are_those_of_the_fit_and_each_paper_was_left_out():
    """The stored errors are those of constants that were fitted without a step's paper."""
    fitted = Efficiency(**FIT["constants"])
    assert Efficiency() == fitted
    assert published_tables.spread() == simulate.SPREAD
    assert FIT["without"].keys() == {step.paper for step in STEPS.values()}
    assert FIT["ratios"].keys() == STEPS.keys()
    for name, step in STEPS.items():
        constants = Efficiency(**FIT["without"][step.paper])
        assert fit_simulator.ratio(name, constants) == pytest.approx(FIT["ratios"][name], abs=1e-4)
    for name, grid in fit_simulator.GRID.items():
        assert grid[0] < getattr(fitted, name) < grid[-1]


def off(ratios: dict[str, float]) -> float:
    """Median error, if each source counts equally."""
    return published_runs.quantile({name: abs(r - 1) for name, r in ratios.items()}, 0.5)


def test_it_errs_by_less_than_half_of_what_one_mfu_does():
    """As docs/published_runs.md says; a program's label can be chosen with --stack."""
    found = published_runs.left_out()
    assert off(found) < 0.10
    assert off(found) < 0.5 * off(published_runs.one_mfu())
    assert off(found) < 0.5 * off(published_runs.one_mfu(0.5))
    mfus = {name: step.mfu for name, step in STEPS.items()}
    ends = tuple(round(published_runs.quantile(mfus, share), 2) for share in (0.1, 0.9))
    assert ends == text.REACHED
    assert {step.stack for step in STEPS.values()} == text.STACKS.keys()


def test_more_machines_take_longer():
    """Small models on 512 GPUs waited three times as long as bandwidths alone say (nanotron)."""
    step = STEPS["nanotron-3b-512"]
    instant = replace(step.cluster, efficiency=replace(Efficiency(), hop=0.0))
    assert simulate.simulate(step.work, instant).mfu > 2.5 * step.mfu
    assert simulate.simulate(step.work, step.cluster).mfu < 1.25 * step.mfu


def test_the_page_has_every_table():
    page = (DATA.parent / "docs" / "published_runs.md").read_text()
    for table in published_tables.TABLES:
        assert table() in page, table
    low, high = simulate.SPREAD
    assert f"between {low:g} and {high:g} times as long" in page
    pairs, right = published_tables.order()
    assert f"right in {right:.0%} of {pairs} pairs" in page
    assert len(page.split()) <= 2000


def test_each_published_step_fits_its_devices_or_says_why_not():
    for name, step in STEPS.items():
        fits = sum(simulate.memory(step.work).values()) <= step.cluster.device.memory
        assert fits == (not step.too_large), name


# Pipelines


def test_the_bubble_is_the_one_of_the_formula():
    """1F1B waits for p - 1 of m micro-batches, which chunks divide (Narayanan et al. 2021, 2.2)."""
    fast = Cluster(DATASHEET["h100"], INSTANT, INSTANT)
    for layout in (
        Layout(pp=4, micro_batches=8),
        Layout(pp=8, micro_batches=64),
        Layout(pp=4, micro_batches=8, chunks=3),
        Layout(micro_batches=5),
    ):
        parts = simulate.simulate(work_of(layout), fast).parts
        idle = parts["pipeline"] / (parts["matmuls"] + parts["elementwise"])
        expected = (layout.pp - 1) / layout.micro_batches / layout.chunks
        assert idle == pytest.approx(expected, rel=1e-3, abs=1e-9), layout


def test_what_is_computed_again_is_what_memory_lacks():
    """Selective recomputation repeats half of the matmuls, or the scores that would be stored."""
    for fused in (True, False):
        work = work_of(Layout(), fused_attention=fused)
        computing = simulate.computing(work, H100S)
        backward, selective, full = (
            simulate.passes(replace(work, recompute=recompute), H100S).backward
            for recompute in ("none", "selective", "full")
        )
        half = computing.matmuls / 2 if fused else 0
        assert selective.matmuls - backward.matmuls == pytest.approx(half)
        scores = 0 if fused else computing.attention
        assert selective.attention - backward.attention == pytest.approx(scores)
        assert full == pytest.approx(backward.plus(computing))
        less = simulate.memory(replace(work, recompute="selective"))
        assert sum(less.values()) < sum(simulate.memory(work).values())


# Links and waiting


def test_a_collective_has_the_slowest_of_its_links():
    """8 cards of 50 GB/s, and NVLink with 450 GB/s."""
    ideal = H100S.ideal
    assert ideal.bandwidth(8) == 450e9  # inside of a machine
    assert ideal.bandwidth(16, 1) == 400e9  # one ring has all cards
    assert ideal.bandwidth(16, 2) == 200e9  # two rings share them
    assert ideal.bandwidth(16, 8) == ideal.bandwidth(16, 64) == 50e9  # a ring for each device
    assert replace(ideal, cards=4).bandwidth(16, 8) == 25e9
    # 8 of 15 others are elsewhere, and each device has a card
    assert ideal.bandwidth(16, 1, to_all=True) == pytest.approx(50e9 * 15 / 8)
    assert ideal.bandwidth(16, 8, to_all=True) == pytest.approx(50e9)
    # 7 others inside would take as long as the slower level only if NVLink had 7/8 of a card
    slow = replace(ideal, inner=replace(ideal.inner, bandwidth=10e9))
    assert slow.bandwidth(16, 1, to_all=True) == pytest.approx(10e9 * 15 / 7)


def test_the_limit_is_near_its_formula():
    """A model without attention and elementwise operators to speak of has the formula's limit."""
    dense = work_of(Layout()).architecture
    wide = replace(dense, n_embd=2**20, mlp_width=2**22, n_head=8, n_kv_head=8)
    cluster = replace(H100S.ideal, device=replace(H100S.device, bandwidth=1e18))
    flops = 989.5e12
    for zero, factor in ((0, 2), (1, 1), (2, 1), (3, 1.5)):
        work = Workload(wide, Layout(dp=2**20, zero=zero), 4096)
        expected = factor * flops / 400e9
        assert simulate.data_limit(work, cluster) == pytest.approx(expected, rel=0.01)


def test_llama_3_trained_for_nine_tenths_of_its_time():
    """More than 90% with one failure in three hours (Llama team 2024, section 3.3.4)."""
    best = simulate.best_interval(16384, 60)
    values = [simulate.goodput(16384, 60, 600, best * factor) for factor in (0.5, 0.9, 1, 1.1, 2)]
    assert max(values) == values[2]
    between = 1 / simulate.FAILURES_PER_DEVICE_HOUR / 16384
    assert between == pytest.approx(54 * 24 / 419)  # hours
    save = 16 * 405e9 / 2e12  # seconds for a checkpoint on Tectonic (section 3.3.1)
    interval = simulate.best_interval(16384, save)
    assert 0.90 < simulate.goodput(16384, save, 600, interval) < 0.95


# What the command prints


def test_the_command_prints_a_step_and_a_sweep(capsys):
    layout = ["--tp", "8", "--pp", "16", "--chunks", "8", "--zero", "2", "--batch", "2048"]
    model = ["--model", "llama3-405b", "--gpus", "16384", "--recompute", "none"]
    cli.main(["simulate", *model, *layout])
    said = capsys.readouterr().out
    for line in ("dp 128, tp 8, pp 16", "MFU", "it fits", "one in 3.1 hours"):
        assert line in said
    assert re.search(r"waits    1\.\d* s tensor, 0\.[678]\d* s pipeline", said)
    shown = r"step +([\d.]+) s: .*\n  expect   ([\d.]+) to ([\d.]+) s"
    step, low, high = re.search(shown, said).groups()
    for limit, factor in zip((low, high), simulate.SPREAD, strict=True):
        assert float(limit) == pytest.approx(factor * float(step), rel=0.02)
    shape = models.model("llama3-8b").architecture
    found = simulate.sweep(Workload(shape, Layout(), 8192), H100S, 16, 32)
    assert len(found) > 10
    assert all(sum(simulate.memory(work).values()) <= 72e9 for work, _ in found)
    seconds = [step.seconds for _, step in found]
    assert seconds == sorted(seconds)
    options = {"model": "llama3-70b", "batch": 512, "recompute": "none", "pp": 1}
    assert "too much; try --recompute full" in text.simulation(gpus=64, tp=1, **options)


EVERY_FLAG = {
    **{"gpus": 32, "hardware": "a100", "inner": "pcie5", "outer": "ethernet-10g"},
    **{
        "stack": "megatron-2021",
        "batch": 64,
        "seq": 1024,
        "tp": 4,
        "pp": 4,
        "cp": 2,
        "ep": 2,
        "zero": 1,
    },
    **{"chunks": 2, "micro_batch": 2, "recompute": "none", "tokens": 1e12, "price": 2},
    **{"peak": 5e14, "bandwidth": 1e12, "memory": 5e10, "optimizer": "muon", "precision": "bf16"},
}


def test_every_flag_counts():
    options = {"model": "qwen3-30b-a3b", "gpus": 16, "tp": 2, "pp": 2, "batch": 32, "tokens": 1e9}
    shapes, flags = ({field.name for field in fields(kind)} for kind in (Shape, SimulateConfig))
    assert EVERY_FLAG.keys() == flags - shapes - {"extend"}
    usual = text.simulation(**options)
    for name, value in EVERY_FLAG.items():
        assert text.simulation(**options | {name: value}) != usual, name
    swept = text.simulation(**options | {"tp": 0})
    for row in swept[: swept.index("layouts fit")].splitlines()[2:-1]:
        assert row.split()[1] == "2"  # pp


MISFITS = [
    ({"model": "gpt2", "hardware": "mi355x"}, "no inner link of .* is known; .* --inner$"),
    ({"cp": 3}, "no layout fits Llama 3 8B on 8 x .* tokens with --cp 3; leave out flags, or"),
    ({"ep": 2, "tp": 1, "pp": 1}, "a model without experts has ep 1; leave out --tp or --pp"),
    ({"zero": 4, "tp": 1}, "zero is 4; 0, 1, 2 or 3 expected"),
    ({"micro_batch": 3}, "no layout .* 16 sequences .* with --micro-batch 3; leave out"),
    ({"gpus": 100, "tp": 8, "pp": 1}, "dp 12 x tp 8 x pp 1 x cp 1 = 96, not 100 GPUs; leave"),
    ({"tp": 1, "pp": 1, "batch": 20}, "batch 20 isn't a multiple of 8, which 8 replicas"),
    ({"gpus": 3, "tp": 3, "pp": 1}, "32 query heads .* tp 3; leave out --tp or --pp"),
    ({"model": "llama3-405b", "gpus": 8}, "no layout fits Llama 3.1 405B on 8 x NVIDIA"),
    ({"inner": "string"}, "inner 'string' is unknown; one of nvlink2, nvlink3"),
]


def test_what_does_not_fit_is_one_line():
    for options, message in MISFITS:
        with pytest.raises(UserError, match=message) as caught:
            text.simulation(**options)
        assert "\n" not in str(caught.value)
