"""Notebook 08's figures draw what they are given, and the live one draws in time."""

import matplotlib
import matplotlib.pyplot as plt
import pytest

from cs336_course.pages.gpt2_training import pictures as plots

matplotlib.use("Agg")


def drawn(axes) -> list[list[float]]:
    """The y values of an axes' lines."""
    return [list(line.get_ydata()) for line in axes.get_lines()]


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def rows(count: int) -> list[dict]:
    """A log of `count` steps, validated every fifth one."""
    made = [
        {"step": n, "train_loss": 3.0 - n / 100, "lr": 1e-3, "grad_norm": 2.0} for n in range(count)
    ]
    for row in made[4::5]:
        row["val_loss"] = row["train_loss"] + 0.1
    return made


def test_a_token_strip_shows_spaces_and_line_ends():
    strip = plots.token_strip(["First", " Citizen", "\n"], [5962, 22307, 198], "title", columns=2)
    assert texts(strip.axes[0]) == ["First", "5962", "␣Citizen", "22307", "⏎", "198"]
    assert len(strip.axes[0].patches) == 3


def test_loss_curves_are_named_where_they_end():
    curves = plots.loss_curves({"a": [3.0, 2.0], "b": [3.0, 1.0]}, {"level": 2.5}, "title")
    assert drawn(curves.axes[0]) == [[3.0, 2.0], [3.0, 1.0], [2.5, 2.5]]
    assert texts(curves.axes[0]) == ["a", "b", "level"]


def test_a_schedule_writes_out_its_ends_and_peak():
    schedule = plots.schedule([0.5, 1.0, 0.1], 2, "title")
    assert [0.5, 1.0, 0.1] in drawn(schedule.axes[0])
    assert texts(schedule.axes[0]) == [
        "step 0: 5.0e-01",
        "step 1, end of the warm-up: 1e+00",
        "step 2: 1e-01",
    ]


def test_gradient_errors_stand_over_their_tokens():
    drawing = plots.gradient_error(
        {"a": {512: 0.4, 1024: 0.2}, "b": {512: 1.1, 1024: 0.6}}, "title"
    )
    first, second, _ = drawing.axes[0].get_lines()
    assert list(first.get_xdata()) == list(second.get_xdata()) == [512, 1024]
    assert list(second.get_ydata()) == [1.1, 0.6]


def test_equal_losses_are_drawn_at_zero():
    top, bottom = plots.same_run([4.0, 3.0, 2.0], [4.0, 3.01, 2.0], "title").axes
    assert drawn(top) == [[4.0, 3.01, 2.0], [4.0, 3.0, 2.0]]
    zero = bottom.get_yticks()[0]
    assert drawn(bottom)[0] == pytest.approx([zero, 0.01, zero])
    assert bottom.get_yticklabels()[0].get_text() == "0"


def test_run_panels_draw_rates_norms_and_the_limit():
    top, bottom = plots.run_panels(rows(6), 1.0, "title").axes
    assert drawn(top) == [[1e-3] * 6]
    assert drawn(bottom) == [[2.0] * 6, [1.0, 1.0]]


class Handle:
    """Counts what a display handle is shown."""

    def __init__(self):
        self.shown = []

    def update(self, obj, *, raw, metadata):
        self.shown.append(obj)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_live_plot_draws_at_most_once_a_second_and_once_at_the_end():
    clock, handle = Clock(), Handle()
    with plots.LiveLossPlot(40, {"level": 4.0}, clock=clock) as live:
        live.handle = handle
        for row in rows(40):
            clock.now += 0.25
            live(row)
        assert len(handle.shown) == 10  # ten seconds
    assert len(handle.shown) == 11
    assert all(set(data) == {"text/plain", "image/png"} for data in handle.shown)
    assert live.axes.get_title(loc="left") == "Step 40 of 40"
    assert [row["val_loss"] for row in live.rows if "val_loss" in row] in drawn(live.axes)
    assert [4.0, 4.0] in drawn(live.axes)


def test_the_live_plot_shows_where_an_interrupted_run_stopped():
    def interrupted(live):
        with live:
            for row in rows(3):
                live(row)
            raise KeyboardInterrupt

    live = plots.LiveLossPlot(40, clock=Clock())
    with pytest.raises(KeyboardInterrupt):
        interrupted(live)
    assert live.axes.get_title(loc="left") == "Step 3 of 40"


def test_the_live_plot_takes_a_tenth_of_the_time_where_drawing_is_slow():
    clock = Clock()
    live = plots.LiveLossPlot(1000, clock=clock)
    live.axes.clear = lambda: setattr(clock, "now", clock.now + 3.0)  # 3 s a drawing
    for row in rows(200):
        clock.now += 1.0
        live(row)
    assert 200 / 33 <= live.drawings <= 200 / 30 + 1


def test_outside_a_notebook_the_live_plot_shows_nothing(capsys):
    with plots.LiveLossPlot(5) as live:
        for row in rows(5):
            live(row)
    assert live.handle is None
    assert capsys.readouterr().out == ""
    assert not plt.fignum_exists(live.drawing.number)  # a notebook must not show it twice


def test_the_live_plot_updates_one_display(monkeypatch):
    displayed = []

    def display(data, *, display_id, raw, metadata):
        assert display_id
        assert raw
        displayed.append(metadata["image/png"]["alt"])
        return Handle()

    monkeypatch.setattr(plots, "get_ipython", object)
    monkeypatch.setattr(plots, "display", display)
    with plots.LiveLossPlot(5, every=0.0) as live:
        live(rows(1)[0])
    (text,) = displayed
    assert text.startswith("Step 0 of 5.")
    assert len(live.handle.shown) >= 1
