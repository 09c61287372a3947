"""Simulated steps agree with published ones, and their pipelines with the theory."""

import math
import re
import shlex
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_course.shared import published_runs
from cs336_lib import accounting, cli
from cs336_lib.bill import limits, memory, models, network, simulate, stacks, text, traffic
from cs336_lib.bill.simulate import Cluster, Efficiency, Workload
from cs336_lib.bill.traffic import Layout
from cs336_lib.config import Simulate
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json
from cs336_lib.system.datasheets import DATASHEET, LINKS, UsualLinks
from tools import fit_simulator
from tools.published_tables import (
    held_out_table,
    program_table,
    source_table,
    spread,
    stack_table,
    step_table,
)

STEPS = published_runs.steps()
H100S = Cluster(DATASHEET["h100"], LINKS["nvlink4"], LINKS["infiniband-ndr"])


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """The relative error of the MFU of each published step."""
    return {
        name: simulate.simulate(step.work, step.cluster).mfu / step.mfu - 1
        for name, step in STEPS.items()
    }


FIT = read_json(DATA / "simulator_fit.json")
FITTED = Efficiency(**FIT["constants"])


def test_the_constants_are_those_of_the_fit():
    assert Efficiency() == FITTED
    assert spread() == simulate.SPREAD
    assert simulate.interval_of(20.0) == (20 * simulate.SPREAD[0], 20 * simulate.SPREAD[1])


def test_each_paper_was_left_out(errors):
    """The stored errors are those of constants that were fitted without a step's paper."""
    assert FIT["without"].keys() == {step.paper for step in STEPS.values()}
    assert FIT["ratios"].keys() == STEPS.keys()
    for name, step in STEPS.items():
        constants = Efficiency(**FIT["without"][step.paper])
        assert fit_simulator.ratio(name, constants) == pytest.approx(FIT["ratios"][name], abs=1e-4)
        assert fit_simulator.ratio(name, FITTED) - 1 == pytest.approx(errors[name])


def test_no_fit_sees_what_it_is_judged_by(monkeypatch, tmp_path):
    fits = []

    def fit(names, start):
        fits.append({fit_simulator.steps()[name].paper for name in names})
        assert not any(fit_simulator.steps()[name].held_out for name in names)
        return start

    monkeypatch.setattr(fit_simulator, "fit", fit)
    monkeypatch.setattr(fit_simulator, "DATA", tmp_path)
    fit_simulator.main()
    everything, *alone = fits
    papers = dict.fromkeys(step.paper for step in STEPS.values())
    assert alone == [everything - {paper} for paper in papers]
    assert read_json(tmp_path / "simulator_fit.json")["without"].keys() == papers.keys()


def test_a_fit_finds_constants_that_made_the_steps(monkeypatch):
    """Steps whose MFU was simulated with other constants give these back, to a step of the grid."""
    truth = replace(Efficiency(), matmul=0.67, inner=0.6)
    names = ["megatron-18b", "korthikanti-22b", "torchtitan-a100-8b"]
    made = {
        name: replace(
            STEPS[name],
            mfu=simulate.simulate(
                STEPS[name].work, replace(STEPS[name].cluster, efficiency=truth)
            ).mfu,
        )
        for name in names
    }
    grid = {name: fit_simulator.GRID[name] for name in ("matmul", "inner")}
    monkeypatch.setattr(fit_simulator, "steps", lambda: made)
    monkeypatch.setattr(fit_simulator, "GRID", grid)
    fit_simulator.ratio.cache_clear()
    found = fit_simulator.fit(names, Efficiency())
    fit_simulator.ratio.cache_clear()
    assert found.matmul == pytest.approx(truth.matmul, abs=0.011)
    assert found.inner == pytest.approx(truth.inner, abs=0.041)


def test_three_runs_are_held_out():
    held = {step.paper: [] for step in STEPS.values() if step.held_out}
    assert list(held) == ["llm-foundry", "nemotron-4", "opt"]
    assert all(("30b" in name) == STEPS[name].held_out for name in STEPS if "mosaic" in name)


def test_no_step_is_hidden():
    """The page names the programs that are far off, and half of the steps are within 8%."""
    errors = {name: ratio - 1 for name, ratio in FIT["ratios"].items()}
    far = {STEPS[name].paper for name, error in errors.items() if abs(error) > 0.2}
    assert far == {"mt-nlg", "torchtitan", "bloom", "smollm3", "llm.c"}
    alone = [errors[name] for name, step in STEPS.items() if not step.held_out]
    assert 0.06 < statistics.median(map(abs, alone)) < 0.08
    assert all(abs(errors[name]) < 0.18 for name, step in STEPS.items() if step.held_out)


def test_the_page_has_every_table():
    page = (DATA.parent / "docs" / "published_runs.md").read_text()
    for table in (stack_table, held_out_table, program_table, step_table, source_table):
        assert table() in page, table.__name__
    low, high = simulate.SPREAD
    assert f"between {low:g} and {high:g} times as long" in page


@pytest.mark.parametrize(
    ("name", "published"),
    [("bloom-176b", 59e9), ("bloom-176b-tp8", 40e9), ("bloom-178b-mbs4", 74e9)],
)
def test_what_fills_the_memory_of_bloom(name, published):
    """Whole norms, and DeepSpeed's fp32 sums of bf16 gradients; 10 to 15% remain.

    The published figures are those of nvidia-smi (bigscience, tr11-176B-ml/chronicles-prequel.md,
    28 February 2022). DeepSpeed's BF16_Optimizer keeps bf16 gradients besides fp32 sums of them.
    """
    work = STEPS[name].work
    kinds = simulate.memory(work)
    split = simulate.memory(replace(work, sequence=True))
    assert sum(split.values()) < 0.55 * published  # where our count was
    sums = 2 * kinds["gradients"]  # 4 bytes besides 2
    assert 0.84 * published < sum(kinds.values()) + sums < 0.91 * published
    residual = 2 * work.layout.micro_batch * work.seq * work.architecture.n_embd  # bytes
    inputs = work.architecture.n_layer * residual  # of 12 stages, with 12 micro-batches in flight
    assert kinds["activations"] > inputs > 2 * split["activations"] > 0


def work_of(layout: Layout, **settings) -> Workload:
    """A model whose layers all cost the same, so that theory gives the bubble."""
    shape = accounting.Architecture(
        n_layer=48, n_embd=4096, n_head=32, n_kv_head=32, head_dim=128, vocab_size=1,
        block_size=4096, mlp_width=11008,
    )  # fmt: skip
    return Workload(shape, layout, 4096, **settings)


def bubble(layout: Layout) -> float:
    """Return the idle share of a pipeline's step, as a fraction of the busy time.

    GPipe and 1F1B wait for p - 1 of m micro-batches (Huang et al. 2019; Narayanan et al. 2021,
    section 2.2). Interleaving divides this by the chunks. ZB-H1 postpones the gradients of weights
    and waits for (p - 1) (F + B - W) (Qi et al. 2023, table 2). A forward pass F and the gradients
    of inputs B and of weights W take equally long, so a third of the wait remains. DualPipe waits
    for (p / 2 - 1) (F + 2 B - W), if its passes overlap and nothing waits for other devices
    (DeepSeek-AI 2024, table 2).
    """
    if layout.schedule == "dualpipe":
        return (layout.pp - 2) / layout.micro_batches / 3
    parts = {"interleaved": layout.chunks, "zb-h1": 3}.get(layout.schedule, 1)
    return (layout.pp - 1) / layout.micro_batches / parts


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
    parts = simulate.simulate(work_of(layout), fast).parts
    computed = parts["matmuls"] + parts["elementwise"]
    assert parts["pipeline"] / computed == pytest.approx(bubble(layout), rel=1e-3, abs=1e-9)


def test_zb_h1_waits_as_in_the_paper(monkeypatch):
    """Qi et al. 2023, table 2: (p - 1) (F + B - W), where 1F1B waits (p - 1) (F + B + W)."""
    layout = Layout(pp=4, micro_batches=8, schedule="zb-h1")
    instant = replace(LINKS["nvlink4"], bandwidth=1e18)
    fast = Cluster(DATASHEET["h100"], instant, instant)
    for forward, backward, weights in ((1, 1, 1), (6, 7, 5)):
        seconds = {"forward": forward, "backward": backward, "weights": weights}
        monkeypatch.setattr(
            simulate, "pass_seconds", lambda *_, s=seconds: {kind: [s[kind]] * 4 for kind in s}
        )
        idle = simulate.pipeline_seconds(work_of(layout), fast) - 8 * sum(seconds.values())
        assert idle == pytest.approx(3 * (forward + backward - weights))
    monkeypatch.undo()
    usual = simulate.simulate(work_of(replace(layout, schedule="1f1b")), fast)
    assert simulate.simulate(work_of(layout), fast).seconds < usual.seconds


def test_dualpipe_waits_as_in_the_paper(monkeypatch):
    """DeepSeek-AI 2024, table 2: (p / 2 - 1) (F&B + B - 3 W), where B includes W."""
    layout = Layout(pp=8, micro_batches=20, schedule="dualpipe")
    for forward, inputs, weights in ((1, 1, 1), (6, 7, 5)):
        seconds = {"forward": forward, "backward": inputs, "weights": weights}
        monkeypatch.setattr(
            simulate, "pass_seconds", lambda *_, s=seconds: {kind: [s[kind]] * 8 for kind in s}
        )
        idle = simulate.dualpipe_seconds(work_of(layout), H100S) - 20 * sum(seconds.values())
        assert idle == pytest.approx(3 * (forward + 2 * inputs - weights))


def test_dualpipe_hides_the_way_to_experts():
    """DeepSeek-V3 took 2.664M H800 hours for 14.8T tokens (DeepSeek-AI 2024, table 1)."""

    def hours(work: Workload) -> float:
        tokens = work.layout.batch * work.seq
        seconds = simulate.simulate(work, STEPS["deepseek-v3"].cluster).seconds
        return 14.8e12 / tokens * seconds / 3600 * work.layout.devices

    work = STEPS["deepseek-v3"].work
    everywhere = replace(work, architecture=replace(work.architecture, n_group=0))
    alone = replace(everywhere, layout=replace(work.layout, schedule="1f1b"))
    assert hours(work) == pytest.approx(2.664e6, rel=0.02)
    assert hours(everywhere) > 1.05 * hours(work)  # with experts on 8 machines instead of 4
    assert hours(alone) > 1.8 * hours(work)
    parts = simulate.simulate(work, STEPS["deepseek-v3"].cluster).parts
    assert 0 < parts["expert"] < 0.1 * parts["matmuls"]


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1"])
def test_every_pass_runs_once_on_every_stage(schedule):
    chunks = 2 if schedule == "interleaved" else 1
    layout = Layout(pp=4, micro_batches=8, schedule=schedule, chunks=chunks)
    for stage in range(4):
        passes = list(simulate.order(layout, stage))
        assert len(passes) == len(set(passes)) == 2 * 8 * chunks + 8 * (schedule == "zb-h1")
        seen = set()
        before = {"backward": "forward", "weights": "backward"}
        for one in passes:  # gradients come after what they need
            seen.add(one)
            assert one.kind == "forward" or one._replace(kind=before[one.kind]) in seen


def test_waiting_by_kind():
    """Each kind of parallelism sends the bytes of its traffic at the speed of its link."""
    shape, seq = models.model("mixtral-8x7b").architecture, 32768
    layout = Layout(dp=2, tp=2, ep=2, cp=2, micro_batches=3)
    speed = H100S.inner.bandwidth * H100S.efficiency.inner
    slow = replace(H100S, efficiency=replace(H100S.efficiency, overlap=0.0))
    parts = simulate.simulate(Workload(shape, layout, seq), slow).parts
    for kind in ("tensor", "expert", "context"):
        expected = traffic.traffic(shape, layout, seq)[kind] / speed
        assert parts[kind] == pytest.approx(expected), kind
    assert simulate.simulate(Workload(shape, layout, seq), H100S).parts["context"] == 0  # hidden


def test_a_ring_has_the_cards_of_its_machine():
    """8 cards of 50 GB/s, and NVLink with 450 GB/s."""
    ideal = H100S.ideal
    assert ideal.bandwidth(8) == 450e9  # inside of a machine
    assert ideal.bandwidth(16, 1) == 400e9  # one ring has all cards
    assert ideal.bandwidth(16, 2) == 200e9  # two rings share them
    for stride in (8, 64):  # a ring for each device
        assert ideal.bandwidth(16, stride) == 50e9
    assert replace(ideal, cards=4).bandwidth(16, 8) == 25e9
    assert ideal.bandwidth(2, 4) == 450e9  # devices 0 and 4


def test_an_all_to_all_leaves_the_machine_with_most_of_its_bytes():
    ideal = H100S.ideal
    # 8 of 15 others are elsewhere, and each device has a card
    assert ideal.bandwidth(16, 1, "all-to-all") == pytest.approx(50e9 * 15 / 8)
    assert ideal.bandwidth(16, 8, "all-to-all") == pytest.approx(50e9)
    # 7 others inside would take as long as the slower level only if NVLink had 7/8 of a card
    slow = replace(ideal, inner=replace(ideal.inner, bandwidth=10e9))
    assert slow.bandwidth(16, 1, "all-to-all") == pytest.approx(10e9 * 15 / 7)


def test_a_switch_that_is_oversubscribed_slows_the_rings_that_leave_it():
    """A ring leaves a pod of 3,072 once. The pod has 3,072 cards, and a seventh of them upwards."""
    pods = replace(H100S.ideal, switch=3072, oversubscription=7)
    assert pods.bandwidth(128, 128) == 50e9  # 128 rings share 439 cards
    assert pods.bandwidth(8, 3072) == pytest.approx(50e9 / 7)  # each device has its own ring
    assert pods.bandwidth(8, 3072, "all-to-all") == pytest.approx(50e9 / 7)
    assert pods.bandwidth(384, 8) == 50e9  # inside of a pod


DENSE = replace(work_of(Layout()).architecture, vocab_size=32000)


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_data_parallelism_hides_from_its_limit_on(zero, tp):
    """At the limit nothing is exposed, and with 1% less bandwidth nearly 1% of the traffic is."""
    layout = Layout(dp=64, tp=tp, zero=zero, micro_batches=2)
    work = Workload(DENSE, layout, 4096, recompute="full")
    limit = limits.data_limit(work, H100S)
    factor = limit / 4096  # of the bandwidth, so that these tokens are the limit

    def scaled(factor: float) -> Cluster:
        outer = replace(H100S.outer, bandwidth=factor * H100S.outer.bandwidth)
        if tp > 1:  # rings don't use NVLink, which the sums of tensor parallelism do
            return replace(H100S, outer=outer)
        inner = replace(H100S.inner, bandwidth=factor * H100S.inner.bandwidth)
        return replace(H100S, inner=inner, outer=outer)

    sent = sum(simulate.data_seconds(work, scaled(factor)))
    exposed = simulate.simulate(work, scaled(factor)).parts["data"]
    assert exposed == pytest.approx(0, abs=1e-9 * sent)
    exposed = simulate.simulate(work, scaled(0.99 * factor)).parts["data"]
    assert 0.002 * sent < exposed < 0.011 * sent


def test_the_limit_counts_tokens():
    """A device with as many tokens as the limit says has nothing to wait for."""
    work = Workload(DENSE, Layout(dp=1024, zero=1), 4096)
    limit = limits.data_limit(work, H100S)
    for factor, waits in ((1.01, False), (0.99, True)):
        fits = replace(work, layout=replace(work.layout, micro_batch=factor * limit / 4096))
        assert (simulate.simulate(fits, H100S).parts["data"] > 0) == waits
    assert limits.data_limit(replace(work, overlap=False), H100S) == math.inf
    assert limits.data_limit(replace(work, layout=Layout()), H100S) == 0


@pytest.mark.parametrize(("zero", "factor"), [(0, 2), (1, 1), (2, 1), (3, 1.5)])
def test_limits_are_near_their_formulas(zero, factor):
    """A model without attention and elementwise operators to speak of has the formulas' limits."""
    wide = replace(DENSE, n_embd=2**20, mlp_width=2**22, n_head=8, n_kv_head=8, vocab_size=1)
    cluster = replace(H100S.ideal, device=replace(H100S.device, bandwidth=1e18))
    work = Workload(wide, Layout(dp=2**20, zero=zero), 4096)
    flops, bandwidth = 989.5e12, 400e9
    assert limits.data_limit(work, cluster) == pytest.approx(factor * flops / bandwidth, rel=0.01)
    cards = replace(work, layout=replace(work.layout, tp=8))
    expected = factor * flops / 50e9
    slow_sums = replace(cluster, inner=replace(cluster.inner, bandwidth=1e18))
    assert limits.data_limit(cards, slow_sums) == pytest.approx(expected, rel=0.01)
    sums = limits.tensor_limit(cards, cluster)
    matrices = accounting.matmul_parameters(wide) / wide.n_layer
    assert sums == pytest.approx(1 + matrices * 450e9 / (4 * wide.n_embd * flops), rel=0.01)


def test_sums_hide_up_to_the_tensor_limit():
    cluster = H100S.ideal
    work = work_of(Layout(tp=8), async_tensor=True)
    limit = limits.tensor_limit(work, cluster)
    inner = cluster.inner.bandwidth * 7 / (limit - 1)  # so that it is 8
    for factor, waits in ((1.01, False), (0.99, True)):
        link = replace(cluster.inner, bandwidth=factor * inner)
        parts = simulate.simulate(work, replace(cluster, inner=link)).parts
        assert (parts["tensor"] > 1e-9) == waits
        assert parts["tensor"] < 0.02 * parts["matmuls"]


def test_the_way_to_experts_hides_behind_experts_that_are_wide_enough():
    layout = Layout(dp=64, ep=64, pp=2, micro_batches=64, schedule="dualpipe")
    shape = replace(STEPS["deepseek-v3"].work.architecture, vocab_size=1, n_layer=62, n_group=0)
    work = Workload(shape, layout, 4096)
    limit = limits.expert_limit(work, H100S)
    assert limit > 1000
    alone = []  # the share of the way that no other pass hides
    for width in (0.9 * limit, limit, 1.1 * limit):
        tried = replace(work, architecture=replace(shape, expert_width=width))
        found = simulate.layer_passes(tried, H100S)
        travels = found.forward.expert + found.backward.expert
        alone.append(travels - (sum(found.forward) + sum(found.backward) - travels))
        waits = simulate.simulate(tried, H100S).parts["expert"]
        whole = (62 / 2) * 64 * travels
        hidden = 1 - layout.pp / layout.micro_batches
        expected = whole - hidden * (whole - 62 / 2 * 64 * max(alone[-1], 0))
        assert waits == pytest.approx(expected, rel=0.01)
    assert alone[0] > 0 > alone[2]
    assert alone[1] == pytest.approx(0, abs=1e-3 * alone[0])


@pytest.mark.parametrize(
    "layout",
    [
        Layout(pp=4, micro_batches=21),
        Layout(pp=4, micro_batches=20, schedule="gpipe"),
        Layout(pp=4, micro_batches=27, schedule="zb-h1"),
        Layout(pp=4, micro_batches=24, schedule="interleaved", chunks=4),
    ],
)
@pytest.mark.parametrize("straggler", [1.0, 1.7])
def test_a_long_step_takes_as_long_as_its_events(layout, straggler):
    work = work_of(layout, straggler=straggler)
    last = max(event.end for event in simulate.pipeline_events(work, H100S))
    assert simulate.pipeline_seconds(work, H100S) == pytest.approx(last, rel=1e-9)


def test_zero_2_sends_gradients_as_often_as_it_shards_them():
    """Memory has a shard of the gradients, and an interleaved pipeline one chunk's besides."""
    shape, parts = DENSE, {}
    for zero in (1, 2):
        for chunks in (1, 4):
            layout = Layout(dp=8, pp=4, zero=zero, micro_batches=8, chunks=chunks)
            blocks = traffic.replicas(shape, layout)[1]
            _, sent = traffic.pass_bytes(layout, blocks)
            once = traffic.all_gather_bytes(4 * blocks.parameters, 8)
            parts[zero, chunks] = sent / once
            held = memory.held_bytes(shape, layout, True, "adamw", "mixed")["gradients"]
            own = traffic.layer_parameters(shape, layout)[0] + 32000 * 4096
            share = 1 if zero == 1 else 1 / 8 + (1 / chunks if chunks > 1 else 0)
            assert held == pytest.approx(2 * own * share)
    assert parts == {(1, 1): 1, (1, 4): 1, (2, 1): 8, (2, 4): 2}


def test_programs_without_overlap_wait_for_all_gradients():
    work = work_of(Layout(dp=16), overlap=False)
    assert simulate.simulate(work, H100S).parts["data"] == sum(simulate.data_seconds(work, H100S))
    assert simulate.simulate(replace(work, overlap=True), H100S).parts["data"] < 0.5 * sum(
        simulate.data_seconds(work, H100S)
    )


def test_a_stack_sets_what_no_flag_says(capsys):
    wide = ["simulate", "--tp", "8", "--pp", "1", "--gpus", "16", "--stack", "megatron-2021"]
    cli.main([*wide, "--sequence"])
    said = capsys.readouterr().out
    assert "attention that stores its scores, full recomputation, norms split by tp, no ov" in said
    assert "ZeRO-0" in said
    cli.main([*wide, "--overlap"])
    assert "whole norms\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"stack 'slow' is unknown; one of megatron-2021"):
        text.simulation(stack="slow")
    for name, stack in stacks.STACKS.items():
        assert stack.source
        filled = stacks.filled(Simulate(stack=name))
        assert (filled.recompute, filled.zero) == (stack.recompute, stack.zero)
        assert stacks.settings(filled) == {
            "fused_attention": stack.fused_attention,
            "sequence": stack.sequence,
            "overlap": stack.overlap,
            "async_tensor": False,
        }


def test_links_follow_the_hardware():
    assert network.cluster_of(DATASHEET["a100"]).inner.name == "NVLink 3 (A100)"
    assert network.cluster_of(DATASHEET["a100"], outer="ethernet-10g").outer.bandwidth == 1.25e9
    assert network.cluster_of(DATASHEET["gb300"]).machine == 72
    with pytest.raises(ValueError, match=r"no inner link of the .*4090 is known; name one of nv"):
        network.cluster_of(replace(DATASHEET["rtx 4090"], links=UsualLinks(8, "none")))


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


def test_llama_3_trained_for_nine_tenths_of_its_time():
    """More than 90% with one failure in three hours (Llama team 2024, section 3.3.4)."""
    checkpoint = 16 * 405e9  # bytes, written at Tectonic's 2 TB/s (section 3.3.1)
    save = checkpoint / 2e12
    interval = simulate.best_interval(16384, save)
    assert 0.90 < simulate.goodput(16384, save, 600, interval) < 0.95


def test_the_sweep_keeps_within_memory_and_sorts_by_time():
    shape = models.model("llama3-8b").architecture
    found = simulate.sweep(Workload(shape, Layout(), 8192), H100S, 16, 32)
    assert len(found) > 10
    assert all(sum(simulate.memory(work).values()) <= 72e9 for work, _ in found)
    seconds = [step.seconds for _, step in found]
    assert seconds == sorted(seconds)
    assert all(work.layout.devices == 16 for work, _ in found)


def test_a_step_that_is_too_large_names_the_nearest_that_fits():
    options = {"model": "llama3-70b", "batch": 512, "recompute": "none"}
    said = text.simulation(gpus=64, tp=1, pp=1, **options)
    assert "too much; it fits with --recompute full" in said
    said = text.simulation(gpus=64, tp=1, pp=1, **options | {"recompute": "full"})
    assert "it fits" in said
    assert "too much" not in said
    said = text.simulation(gpus=8, tp=8, pp=1, **options)
    assert "too much; use more or larger GPUs" in said


def test_the_command_prints_a_step_and_a_sweep(capsys):
    layout = ["--tp", "8", "--pp", "16", "--chunks", "8", "--zero", "2", "--batch", "2048"]
    model = ["--model", "llama3-405b", "--gpus", "16384", "--recompute", "none"]
    cli.main(["simulate", *model, *layout])
    text = capsys.readouterr().out
    for line in ("dp 128, tp 8, pp 16", "MFU", "it fits", "one in 3.1 hours"):
        assert line in text
    assert re.search(r"waits    1\.\d* s tensor, 0\.8\d* s pipeline, 0\.05\d* s data", text)
    shown = r"step +([\d.]+) s: .*\n  expect   ([\d.]+) to ([\d.]+) s"
    step, low, high = re.search(shown, text).groups()
    for limit, factor in zip((low, high), simulate.SPREAD, strict=True):
        assert float(limit) == pytest.approx(factor * float(step), rel=0.02)
    layout = ["--tp", "1", "--pp", "2", "--batch", "32", "--schedule", "zb-h1"]
    cli.main(["simulate", *layout, "--straggler", "1.5"])
    assert "a stage 1.5 times as slow makes the step 1.4" in capsys.readouterr().out
    cli.main(["simulate", "--model", "mixtral-8x7b", "--gpus", "64", "--hardware", "h200"])
    _, _, first, *_, counted, _, command = capsys.readouterr().out.splitlines()
    assert "layouts fit" in counted
    cli.main(command.split()[1:])
    details = capsys.readouterr().out
    assert float(re.search(r"step +([\d.]+) s", details)[1]) == pytest.approx(
        float(first.split()[8]), rel=0.01
    )
    assert f"speed    {first.split()[-1]} MFU" in details


COLUMNS = ("tp", "pp", "dp", "ep", "chunks", "zero", "micro_batch", "recompute")

SEARCHES = st.fixed_dictionaries(
    {"model": st.sampled_from(["gpt2", "qwen3-0.6b", "qwen3-30b-a3b"])},
    optional={
        "gpus": st.sampled_from([1, 3, 4, 8, 12, 16]),
        "hardware": st.sampled_from(["h100", "b200"]),
        "batch": st.sampled_from([8, 24, 48, 64]),
        "seq": st.sampled_from([512, 1000, 1023]),
        "cp": st.integers(1, 4),
        "ep": st.sampled_from([1, 2, 3, 4, 8]),
        "zero": st.integers(0, 3),
        "chunks": st.integers(1, 4),
        "schedule": st.sampled_from(["1f1b", "gpipe", "zb-h1", "dualpipe"]),
        "micro_batch": st.integers(1, 4),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "straggler": st.sampled_from([1.0, 1.7]),
        "save": st.sampled_from([0.01, 90.5]),
    },
)


def searched(text: str) -> tuple[list[dict[str, str]], str]:
    """Rows of the table of a search, and the command under it."""
    lines = text.splitlines()
    cells = [line.split() for line in lines[2:-3]]
    rows = [dict(zip((*COLUMNS, "step", "s", "mfu"), row, strict=True)) for row in cells]
    return rows, lines[-1]


@settings(
    max_examples=60,
    derandomize=True,
)
@given(options=SEARCHES)
def test_a_search_obeys_every_flag_and_its_command_repeats_its_numbers(options, capsys):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    try:
        said = text.simulation(**options)
    except ValueError:
        return
    rows, command = searched(said)
    for row in rows:
        for name in COLUMNS[3:]:
            assert row[name] == str(options.get(name, row[name])), (flags, row)
        assert int(row["chunks"]) == 1 or int(row["pp"]) > 1
        devices = int(row["tp"]) * int(row["pp"]) * int(row["dp"]) * options.get("cp", 1)
        assert devices == options.get("gpus", 8)
    capsys.readouterr()
    cli.main(shlex.split(command)[1:])
    details = capsys.readouterr().out
    first = rows[0]
    assert f"  step     {first['step']} s: " in details
    assert f"  speed    {first['mfu']} MFU" in details
    assert f"cp {options.get('cp', 1)}, ep {first['ep']}, ZeRO-{first['zero']}, " in details
    schedule = options.get("schedule", "1f1b")
    assert schedule in details or (schedule == "1f1b" and ", interleaved, " in details)
    assert "it fits" in details


def test_a_search_with_context_parallelism_shows_what_its_command_shows(capsys):
    said = text.simulation(cp=2)
    assert "cp 2" in said.splitlines()[0]
    rows, command = searched(said)
    cli.main(shlex.split(command)[1:])
    assert f"{rows[0]['step']} s: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cp": 3}, "8 GPUs can't be divided by cp 3"),
        ({"ep": 2}, "a model without experts has ep 1"),
        ({"model": "mixtral-8x7b", "ep": 3}, "8 experts can't be split over ep 3"),
        ({"cp": 2, "seq": 1001}, "1001 tokens in a sequence can't be split over twice cp 2"),
        ({"schedule": "zb-h1", "chunks": 2}, "zb-h1 has one chunk on each stage"),
        ({"gpus": 1, "schedule": "dualpipe"}, "no layout .* fits on 1 x .* --schedule dualpipe"),
        ({"zero": -1}, "zero is -1; 0, 1, 2 or 3 expected"),
        ({"zero": 4, "tp": 1}, "zero is 4; 0, 1, 2 or 3 expected"),
        (
            {"micro_batch": 3},
            "no layout .* --micro-batch 3; use --batch 24 or leave out --micro-batch",
        ),
    ],
)
def test_a_search_that_finds_nothing_says_which_flag_is_the_reason(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        text.simulation(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"gpus": 100, "tp": 8, "pp": 1},
            "100 GPUs can't .* = 8; the nearest layout has --gpus 96 --batch 204",
        ),
        ({"tp": 1, "pp": 1, "batch": 20}, "batch 20 isn't a multiple of 8.* has --batch 16"),
        ({"gpus": 3, "tp": 3, "pp": 1}, "32 query heads .* tp 3; .* has --tp 2 --gpus 4"),
        ({"tp": 1, "pp": 1, "ep": 2}, "a model without experts has ep 1; .* has --ep 1"),
        ({"model": "llama9", "tp": 1}, "model 'llama9' is unknown; one of gpt2"),
        ({"model": "llama3-405b", "gpus": 8}, "no layout of Llama 3.1 405B fits on 8 x NVIDIA"),
        ({"inner": "string"}, "inner 'string' is unknown; one of nvlink3"),
        ({"straggler": 0.5}, "straggler is 0.5; 1 to 1000000 expected"),
        (
            {"gpus": 64, "dp": 4, "tp": 8, "pp": 4},
            "dp 4 x tp 8 x pp 4 x cp 1 = 128, not 64 GPUs; the nearest layout has --dp 2",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        text.simulation(**options)
    assert "\n" not in str(caught.value)
