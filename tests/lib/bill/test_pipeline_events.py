"""The events of a pipeline are those of its schedule, and their figure draws them."""

from itertools import pairwise

import matplotlib
import pytest

from cs336_course.pages.thousands_of_gpus import pipelines, story
from cs336_lib.bill import simulate
from cs336_lib.bill.simulate import Operation
from cs336_lib.config import UserError

matplotlib.use("Agg")


SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)]


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_a_stage_runs_one_pass_at_a_time_and_as_long_as_it_takes(schedule, chunks):
    work = story.work(schedule, chunks)
    lasts = simulate.pass_seconds(work, story.CLUSTER)
    events = story.play(schedule, chunks)
    for stage in range(story.STAGES):
        mine = sorted((each for each in events if each.stage == stage), key=lambda e: e.start)
        assert [each.operation for each in mine] == list(simulate.order(work.layout, stage))
        for earlier, later in pairwise(mine):
            assert later.start >= earlier.end
        for _, (kind, _, chunk), start, end in mine:
            place = chunk * story.STAGES + stage
            assert end - start == pytest.approx(lasts[kind][place])
    assert simulate.pipeline_seconds(work, story.CLUSTER) == max(e.end for e in events)


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_no_pass_starts_before_its_input_exists(schedule, chunks):
    events = story.play(schedule, chunks)
    ends = {(e.operation.kind, e.operation.micro_batch, e.operation.chunk * 4 + e.stage): e.end
            for e in events}  # fmt: skip
    for stage, (kind, number, chunk), start, _ in events:
        place = chunk * 4 + stage
        if kind == "forward" and place:
            assert start > ends["forward", number, place - 1]
        if kind == "backward" and place < 4 * chunks - 1:
            assert start > ends["backward", number, place + 1]


def test_1f1b_holds_less_than_gpipe_and_waits_as_long():
    gpipe, ours = story.play("gpipe"), story.play("1f1b")
    assert [story.held(gpipe, stage) for stage in range(4)] == [8, 8, 8, 8]
    assert [story.held(ours, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert story.seconds(ours) == pytest.approx(story.seconds(gpipe))
    assert story.idle(ours, 0) == pytest.approx(3 / 11, abs=0.03)


def test_a_written_schedule_is_played():
    def order(stage, stages, micro_batches):
        both = range(micro_batches)
        return [("forward", n) for n in both] + [("backward", n) for n in both]

    assert story.play_order(order) == story.play("gpipe")


def test_stages_that_wait_for_each_other_are_one_line():
    def backward_first(layout, stage):
        return [Operation("backward", 0, 0), Operation("forward", 0, 0)]

    with pytest.raises(UserError, match="stage 1 waits for a pass that never runs"):
        list(
            simulate.pipeline_events(
                story.work("1f1b"),
                story.CLUSTER,
                lambda layout, stage: [] if stage == 0 else backward_first(layout, stage),
            )
        )


def test_a_timeline_has_a_box_for_each_pass():
    schedules = {"one": story.play("1f1b"), "two": story.play("interleaved", 2)}
    first, second = pipelines.timelines(schedules, "two schedules").axes
    assert [len(axes.patches) for axes in (first, second)] == [4 * 16, 4 * 32]
    assert first.get_xlim() == second.get_xlim()
    assert first.patches[0].get_width() == pytest.approx(
        1e3 * (schedules["one"][0].end - schedules["one"][0].start)
    )
    assert " slice 1" not in {text.get_text() for text in first.texts}
    assert [text.get_text().strip() for text in second.texts][-2:] == ["slice 0", "slice 1"]
