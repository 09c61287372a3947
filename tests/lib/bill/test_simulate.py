"""Simulated steps agree with published ones, and their pipelines with the theory."""

import re
import shlex
import statistics
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cs336_course.demos import published_runs
from cs336_lib import accounting, cli
from cs336_lib.bill import models, simulate, text, traffic
from cs336_lib.bill.simulate import Cluster, Workload
from cs336_lib.bill.traffic import Layout
from cs336_lib.system.datasheets import DATASHEET, LINKS
from tools.published_tables import step_table

STEPS = published_runs.steps()
H100S = Cluster(DATASHEET["h100"], LINKS["nvlink4"], LINKS["infiniband-ndr"])


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """The relative error of the MFU of each published step."""
    return {
        name: simulate.simulate(step.work, step.cluster).mfu / step.mfu - 1
        for name, step in STEPS.items()
    }


def test_the_median_error_is_small_on_steps_that_were_not_fitted(errors):
    values = list(errors.values())
    fitted, judged = values[:26:2], [*values[1:26:2], *values[26:]]
    assert statistics.median(map(abs, fitted)) < 0.05
    assert statistics.median(map(abs, judged)) < 0.05
    for added in ("megatron-mixtral-8x7b", "deepseek-v3"):  # after the fit
        assert abs(errors[added]) < 0.05


def test_no_step_is_hidden(errors):
    far = {name for name, error in errors.items() if abs(error) > 0.15}
    assert far == {"mt-nlg-2240", "mt-nlg-2800", "mt-nlg-3360"}  # DeepSpeed without interleaving
    assert max(map(abs, errors.values())) < 0.35


def test_the_page_has_every_step():
    page = published_runs.DATA.parent / "docs" / "published_runs.md"
    assert step_table() in page.read_text()


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
    assert hours(everywhere) > 1.1 * hours(work)  # with experts on 8 machines instead of 4
    assert hours(alone) > 2 * hours(work)
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
    speed = H100S.link_speed(8)
    slow = replace(H100S, efficiency=replace(H100S.efficiency, overlap=0.0))
    parts = simulate.simulate(Workload(shape, layout, seq), slow).parts
    for kind in ("tensor", "expert", "context"):
        expected = traffic.traffic(shape, layout, seq)[kind] / speed
        assert parts[kind] == pytest.approx(expected), kind
    assert simulate.simulate(Workload(shape, layout, seq), H100S).parts["context"] == 0  # hidden


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
    assert re.search(r"waits    1\.01\d* s tensor, 0\.8\d* s pipeline, 0\.2\d* s data", text)
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
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
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
