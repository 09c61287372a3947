"""Steps on several GPUs take as long as they must, and the figures show all of their spans."""

import itertools

import matplotlib
import pytest

matplotlib.use("Agg")


from cs336_course.pages.memory.exercises import least_tokens
from cs336_course.pages.thousands_of_gpus import parallel_step
from cs336_course.pages.thousands_of_gpus import pictures as plots
from cs336_course.pages.thousands_of_gpus.parallel_step import GPU, LINK, length
from cs336_lib import accounting


def computing(spans) -> float:
    return sum(span.seconds for span in spans if span.lane.startswith(GPU))


def sending(spans) -> float:
    return sum(span.seconds for span in spans if span.lane == LINK)


def assert_one_at_a_time(spans):
    """A lane never does two things at once."""
    for lane in {span.lane for span in spans}:
        own = sorted((span for span in spans if span.lane == lane), key=lambda span: span.start)
        for first, second in itertools.pairwise(own):
            assert second.start >= first.end - 1e-9


def test_gradients_hide_behind_backward_only():
    hidden = parallel_step.data_parallel(1, 2, 1, blocks=10)
    assert length(hidden) == pytest.approx(3 + 0.1)  # the last block's gradients come too late
    slow = parallel_step.data_parallel(1, 2, 5, blocks=10)
    assert length(slow) == pytest.approx(1 + 0.2 + 5)
    for spans, size in ((hidden, 1), (slow, 5)):
        assert_one_at_a_time(spans)
        assert computing(spans) == pytest.approx(3)
        assert sending(spans) == pytest.approx(size)
    assert min(span.start for span in hidden if span.lane == LINK) == pytest.approx(1.2)


def test_sharded_weights_arrive_in_time_or_are_waited_for():
    fast = parallel_step.fully_sharded(1, 2, 0.5, blocks=10)
    assert length(fast) == pytest.approx(3 + 0.05 + 0.05)  # the first gather, the last scatter
    slow = parallel_step.fully_sharded(1, 2, 10, blocks=10)
    assert length(slow) == pytest.approx(30, rel=0.1)
    for spans, gather in ((fast, 0.5), (slow, 10)):
        assert_one_at_a_time(spans)
        assert sending(spans) == pytest.approx(3 * gather)
        gathers = [span for span in spans if span.kind == "all-gather"]
        blocks = [span for span in spans if span.lane == GPU]
        for arrived, block in zip(gathers, blocks, strict=True):
            assert block.start >= arrived.end - 1e-9


def test_tensor_parallelism_waits_for_every_sum():
    spans = parallel_step.tensor_parallel(1, 2, 4, blocks=3)
    assert_one_at_a_time(spans)
    assert length(spans) == pytest.approx(1 + 2 + 4)
    assert sum(span.lane == LINK for span in spans) == 4 * 3


@pytest.mark.parametrize("micro_batches", [1, 4, 16])
@pytest.mark.parametrize("stages", [1, 4])
def test_a_pipeline_idles_for_the_bubble(stages, micro_batches):
    spans = parallel_step.pipeline(stages, micro_batches)
    assert_one_at_a_time(spans)
    assert len(spans) == 2 * stages * micro_batches
    bubble = (stages - 1) / (micro_batches + stages - 1)
    assert parallel_step.busy(spans) == pytest.approx(1 - bubble)
    assert length(parallel_step.pipeline(4, 1, send=0.5)) == pytest.approx(12 + 6 * 0.5)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_ring_adds_up(n):
    start = [[10**rank * (part + 1) for part in range(n)] for rank in range(n)]
    turns = list(parallel_step.ring_all_reduce(start))
    assert [kind for kind, _ in turns] == ["reduce-scatter"] * (n - 1) + ["all-gather"] * (n - 1)
    total = [sum(column) for column in zip(*start, strict=True)]
    assert turns[-1][1] == [total] * n
    complete = sum(a == b for row in turns[n - 2][1] for a, b in zip(row, total, strict=True))
    assert complete == n


def test_the_exercise_agrees_with_the_simulation():
    tokens = least_tokens.build(least_tokens.solution)(8, 1e12, 1e9, 2)
    backward, sending = 4 * tokens / 1e12, 2 * 2 * 7 / 8 / 1e9  # of one parameter
    step = parallel_step.data_parallel(0, backward, sending, blocks=10_000)
    assert length(step) == pytest.approx(backward, rel=1e-3)


def test_updated_weights_arrive_during_the_next_forward_pass():
    fast = parallel_step.gradients_sharded(1, 2, 0.5, blocks=10)
    assert length(fast) == pytest.approx(3 + 0.05 + 0.05)
    slow = parallel_step.gradients_sharded(1, 2, 5, blocks=10)
    assert length(slow) == pytest.approx(5 + 0.1 + 0.2 + 5)
    for spans, half in ((fast, 0.5), (slow, 5)):
        assert_one_at_a_time(spans)
        assert sending(spans) == pytest.approx(2 * half)
        assert computing(spans) == pytest.approx(3)


def test_a_pipeline_waits_for_its_longest_stage():
    equal = parallel_step.pipeline(2, 8, work=(1, 1))
    assert equal == parallel_step.pipeline(2, 8)
    unequal = parallel_step.pipeline(2, 8, work=(0.5, 1.5))
    assert_one_at_a_time(unequal)
    assert computing(unequal) == pytest.approx(computing(equal))
    assert length(unequal) == pytest.approx(0.5 + 8 * 1.5 * 3 + 2 * 0.5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_cuts_one_part_more_in_each_stage(stage):
    per = accounting.bytes_per_parameter("adamw", "mixed")
    parts = parallel_step.zero_state(per, 8e9, 8, stage)
    assert sum(parts.values()) == pytest.approx(8 * per.sharded(devices=8, stage=stage))


def test_the_bill_lists_each_way():
    ways = {"ring": (10e9, 5e9, 3e9, lambda speed: parallel_step.data_parallel(1, 2, 8 / speed, 1))}
    head, row = parallel_step.bill(ways, 2.0, {"fast": 8.0, "slow": 1.0}).splitlines()
    assert head.split()[-2:] == ["fast", "slow"]
    assert row.split() == ["ring", "10", "5", "3", "4.00", "0.50", "11.00", "0.18"]


def test_bytes_become_seconds():
    said = parallel_step.sending(3e9, {"fast": 6e9, "slow": 1e9})
    assert said == "3.0 GB: 0.500 s over fast, 3.000 s over slow"


def test_the_figures_draw_every_span():
    steps = {"fast": parallel_step.data_parallel(1, 2, 1, blocks=4)}
    drawing = plots.steps({**steps, "slow": parallel_step.fully_sharded(1, 2, 9, blocks=4)})
    drawn = sum(len(c.get_paths()) for axes in drawing.axes for c in axes.collections)
    assert drawn == 12 + 20
    assert drawing.axes[0].get_title(loc="left") == "fast: 3.25 s"
    legend = [text.get_text() for text in drawing.axes[1].get_legend().get_texts()]
    assert legend == ["forward", "backward", "all-gather", "reduce-scatter", "all-reduce"]
    drawing = plots.pipelines({"one": parallel_step.pipeline(3, 2)})
    assert sum(len(c.get_paths()) for c in drawing.axes[0].collections) == 12
