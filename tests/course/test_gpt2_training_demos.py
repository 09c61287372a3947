"""Notebook 08's helpers: the watched script, the compressors and the recorded runs."""

import json
import math

import pytest

from cs336_course.pages.gpt2_training import compressors, recipe_runs, script_run

SCRIPT = """
import json, sys
for step in range(3):
    with open(sys.argv[1], "a") as log:
        log.write(json.dumps({"step": step, "loss": 3.0 - step}) + "\\n")
"""


def test_a_watched_script_hands_over_its_rows(tmp_path):
    script, log, seen = tmp_path / "run.py", tmp_path / "log.jsonl", []
    script.write_text(SCRIPT)
    rows = script_run.watch(script, [log], log, seen.append, every=0.01)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert [row["train_loss"] for row in seen] == [3.0, 2.0, 1.0]


def test_a_script_that_fails_says_why(tmp_path):
    script = tmp_path / "run.py"
    script.write_text("raise SystemExit('no shards')")
    with pytest.raises(RuntimeError, match="no shards"):
        script_run.watch(script, [], tmp_path / "log.jsonl", print, every=0.01)


def test_half_a_row_is_left_for_later(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"loss": 1}) + '\n{"loss')
    assert list(script_run.new_rows(log, 0)) == [{"loss": 1}]
    assert list(script_run.new_rows(log, 1)) == []


def test_compressors_count_bits_per_byte():
    found = compressors.bits_per_byte(bytes(1000) * 8)
    assert set(found) == {"gzip", "bz2", "xz"}
    assert all(0 < bits < 0.2 for bits in found.values())


def test_schedules_begin_with_a_warm_up_and_end_where_they_say():
    for name, rates in recipe_runs.schedules(20, 4).items():
        assert [rates(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
        last = {"constant": 1.0, "half a cosine, to a tenth": 0.1}.get(name, 0.0)
        assert rates(19) == pytest.approx(last, abs=1e-12), name


def test_a_small_run_learns_the_same_each_time():
    rates = recipe_runs.schedules(20, 4)["constant"]
    loss, clipped = recipe_runs.held_out_loss(rates, 0, 20, 0.01)
    assert (loss, clipped) == recipe_runs.held_out_loss(rates, 0, 20, 0.01)
    assert 2.5 < loss < math.log(62)
    assert 0 <= clipped <= 1


def test_the_recorded_runs_are_complete():
    runs = recipe_runs.recorded()
    clipped = recipe_runs.by_schedule(runs)
    assert set(clipped) == set(recipe_runs.schedules(20, 4))
    assert all(len(found) == 3 for by_peak in clipped.values() for found in by_peak.values())
    assert set(recipe_runs.by_schedule(runs, clipping=False)) == {"half a cosine, to a tenth"}
    assert recipe_runs.one_line({0.1: [1.0, 2.0]}) == "peak 0.1: 1.00 2.00"
