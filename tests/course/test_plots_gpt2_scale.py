"""The figures of notebook 10 draw what they are given, and nothing is left unlabelled."""

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from cs336_course.pages.gpt2_scale import pictures as plots


def words(drawing: Figure) -> list[str]:
    """All the texts in the axes and the legends, and the ticks' names."""
    drawing.canvas.draw()
    found = [text.get_text() for axes in drawing.axes for text in axes.texts]
    legends = [axes.get_legend() for axes in drawing.axes if axes.get_legend()]
    found += [text.get_text() for legend in legends for text in legend.get_texts()]
    for axes in drawing.axes:
        assert axes.get_xlabel()
        found += [text.get_text() for text in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    return found


def test_who_reads_what_numbers_every_window_once():
    rows = {"one": [[(0, 2), (2, 2)]], "two": [[(0, 2)], [(2, 2)]]}
    drawing = plots.who_reads_what(rows, 4, "title")
    axes = drawing.axes[0]
    assert [text.get_text() for text in axes.texts] == ["0"] * 4 + ["0", "0", "1", "1"]
    assert len({patch.get_facecolor() for patch in axes.patches if patch.get_fill()}) == 2
    assert {"one", "two"} <= set(words(drawing))


def test_ring_marks_the_sums_that_are_complete():
    states = {"at first": [[1, 2], [10, 20]], "at the end": [[11, 22], [11, 22]]}
    drawing = plots.ring(states, "title")
    first, last = ([text.get_weight() for text in axes.texts] for axes in drawing.axes)
    assert first == ["normal"] * 4
    assert last == ["bold"] * 4
    assert {"1", "20", "11", "22", "rank 0", "rank 1"} <= set(words(drawing))


def test_whole_units_says_what_is_whole_at_which_moment():
    drawing = plots.whole_units([("forward 1", ["block 1"]), ("end", ["rest"])], "title")
    assert [text.get_text() for text in drawing.axes[0].texts] == [
        *("whole", "shard"),
        *("shard", "whole"),
    ]
    assert {"block 1", "rest", "forward\n1", "end"} <= set(words(drawing))


def test_bytes_per_gpu_adds_up_the_parts():
    bars = {"all": {"weights": 1e9, "gradients": 1e9, "optimizer state": 2e9}}
    drawing = plots.bytes_per_gpu(bars, {"3 GB": 3e9}, "title")
    assert [patch.get_width() for patch in drawing.axes[0].patches] == [1, 1, 2]
    assert {"4.0 GB", "3 GB", "weights", "optimizer state", "all"} <= set(words(drawing))


def test_bill_writes_hours_and_dollars():
    drawing = plots.bill({"small": (6.0, 0.75), "large": (72.0, 9.0)}, [21.0, 252.0], "title")
    assert [patch.get_height() for patch in drawing.axes[0].patches] == [6.0, 72.0, 0.75, 9.0]
    assert {"6 h", "0.75 h", "small\n$21", "large\n$252", "1 GPU", "8 GPUs"} <= set(words(drawing))


def test_runs_have_three_levels_and_a_run_without_scores_is_on_the_left_only():
    runs = {"theirs": ([1000, 2000], [4.0, 3.5], [0.26, 0.27]), "another": ([1000], [4.1], [])}
    drawing = plots.real_runs(runs, (3.29, 0.29, 0.25))
    left, right = drawing.axes
    assert list(left.lines[0].get_ydata()) == [4.0, 3.5]
    assert list(right.lines[0].get_ydata()) == [26.0, 27.0]
    assert len(left.lines) == len(right.lines) == 3  # two runs and a level, a run and two levels
    assert {
        "theirs",
        "another",
        "OpenAI's GPT-2: 3.29",
        "OpenAI's GPT-2: 29.00",
        "guessing: 25",
    } <= set(words(drawing))


def test_own_run_is_read_from_the_log_of_train_gpt2(tmp_path):
    log = tmp_path / "log.jsonl"
    assert plots.own_run(log) == {}
    log.write_text('{"step": 0, "loss": 10.9}\n')
    assert plots.own_run(log) == {}
    with log.open("a") as file:
        file.write('{"step": 249, "loss": 6.1, "val_loss": 6.2, "hellaswag": 0.25}\n')
    assert plots.own_run(log) == {"yours, on other pages": ([249], [6.2], [0.25])}
    log.write_text('{"step": 249, "loss": 6.1, "val_loss": 6.2}\n')
    assert plots.own_run(log) == {"yours, on other pages": ([249], [6.2], [])}


def test_the_cover_has_a_square_for_each_day_and_a_strip_of_minutes(monkeypatch):
    monkeypatch.setattr(plots, "show_cover", lambda: None)
    plots.cover()
    left, right = plt.gcf().axes
    assert len(left.patches) == round(10e9 / 136 / 86_400)
    day, strip = right.patches
    assert (day.get_width(), round(strip.get_width())) == (24 * 60, 45)
    assert [text.get_text() for text in right.texts] == ["45 minutes"]
