"""What the four pages on GPT-2's training don't print: programs that fail, and logs of a reader."""

import json

import pytest

from cs336_course.pages.gpt2_scale import pictures as scale
from cs336_course.pages.gpt2_training import pictures, story
from cs336_course.shared import torchrun


class Clock:
    """A clock that a test sets, and a display that notes what it is shown."""

    def __init__(self):
        self.now, self.shown = 0.0, []

    def __call__(self) -> float:
        return self.now

    def update(self, data, **how):
        self.shown.append(data)


def test_a_watched_script_that_fails_says_why(tmp_path):
    script = tmp_path / "run.py"
    script.write_text("raise SystemExit('no shards')")
    with pytest.raises(RuntimeError, match="no shards"):
        story.watch(script, [], tmp_path / "log.jsonl", print, every=0.01)


def test_half_a_row_of_a_log_is_left_for_later(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"loss": 1}) + '\n{"loss')
    assert list(story.new_rows(log, 0)) == [{"loss": 1}]
    assert list(story.new_rows(log, 1)) == []


def test_the_live_plot_draws_once_a_second_and_where_a_run_was_stopped():
    clock = Clock()
    live = pictures.LiveLossPlot(60, clock=clock)

    def interrupted():
        with live:
            live.handle = clock
            for step in range(40):
                clock.now += 0.25
                live({"step": step, "train_loss": 3.0})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(clock.shown) == 11  # ten seconds, and the end
    assert live.axes.get_title(loc="left") == "Step 40 of 60"


def test_the_live_plot_takes_a_tenth_of_the_time_where_drawing_is_slow():
    clock = Clock()
    live = pictures.LiveLossPlot(1000, clock=clock)
    live.axes.clear = lambda: setattr(clock, "now", clock.now + 3.0)  # 3 s a drawing
    for step in range(200):
        clock.now += 1.0
        live({"step": step, "train_loss": 3.0})
    assert 200 / 33 <= live.drawings <= 200 / 30 + 1


def test_programs_are_finished_or_killed(tmp_path):
    (tmp_path / "count.py").write_text("for i in range(10**9): print('step', i, flush=True)")
    running = torchrun.start(tmp_path, "count.py")
    torchrun.kill_after(running, "step 3")
    assert running.returncode not in (None, 0)
    assert torchrun.finish(torchrun.start(tmp_path, "-c", "print('é')")) == "é\n"
    with pytest.raises(ChildProcessError, match="NameError"):
        torchrun.finish(torchrun.start(tmp_path, "-c", "unknown"))


def test_a_readers_full_run_is_read_from_its_log(tmp_path):
    log = tmp_path / "log.jsonl"
    assert scale.own_run(log) == {}
    log.write_text('{"step": 0, "loss": 10.9}\n')
    assert scale.own_run(log) == {}
    with log.open("a") as file:
        file.write('{"step": 249, "loss": 6.1, "val_loss": 6.2, "hellaswag": 0.25}\n')
    assert scale.own_run(log) == {"yours, on other pages": ([249], [6.2], [0.25])}
    log.write_text('{"step": 249, "loss": 6.1, "val_loss": 6.2}\n')
    assert scale.own_run(log) == {"yours, on other pages": ([249], [6.2], [])}
