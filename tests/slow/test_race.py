"""`cs336 race` ends in time, and leaves a run that everything else reads."""

import dataclasses
import math

import pytest

from cs336_lib import accounting, cli
from cs336_lib.config import GPTConfig
from cs336_lib.training import race


def test_a_race_that_is_late_stops_and_is_scored(tmp_path, monkeypatch, capsys):
    """As if the machine had become busy after the trial."""
    fitted = race.fitted

    def hopeful(config, end, tokens):
        return dataclasses.replace(fitted(config, end, tokens), max_steps=100_000)

    monkeypatch.setattr(race, "fitted", hopeful)
    monkeypatch.setattr(race, "WIDTHS", (32,))
    cli.main(["race", "--minutes", "0.2", "--run-dir", str(tmp_path / "race"), "--device", "cpu"])
    said = capsys.readouterr().out
    assert "Stopped after step" in said
    assert "bits per byte" in said
    raced = float(said.split("bits per byte")[1].split()[0])
    folder = ["--run-dir", str(tmp_path / "race")]
    cli.main(["sample", *folder, "--prompt", "Romeo:", "--max-new-tokens", "20"])
    assert capsys.readouterr().out.startswith("Romeo:")
    cli.main(["eval", *folder])
    bits = float(capsys.readouterr().out.split("bits per byte")[1])
    assert math.isclose(bits, raced, abs_tol=2e-3)
    cli.main(["report", folder[1]])
    assert "report.html" in capsys.readouterr().out


def test_a_slow_start_is_not_a_slow_run(monkeypatch):
    """The time before the first step says nothing about the time of the evaluation."""
    clock = iter([20.0, 20.0, 25.0, 70.0])  # opened after 20 s, then 5 s for 10 steps
    monkeypatch.setattr(race.time, "perf_counter", lambda: next(clock))
    deadline = race.Deadline(end=87, val_tokens=200_000)
    assert not deadline.passes(2048)
    assert not deadline.passes(2 * 2048)
    assert not deadline.passes(11 * 2048)  # the evaluation takes 20 s
    assert deadline.passes(101 * 2048)


def test_a_slow_machine_gets_a_narrow_model(monkeypatch):
    """Widths grow with the number of tokens that fit."""
    monkeypatch.setattr(race.time, "perf_counter", lambda: 0.0)
    for seconds, width in ((4.0, 32), (0.1, 192), (1e-4, 384)):

        def trial(config, least=0.0, seconds=seconds):
            sizes = {"n_layer": config.n_layer, "n_embd": config.n_embd, "n_head": config.n_head}
            shape = GPTConfig(**sizes, block_size=config.block_size, vocab_size=1024)
            return seconds, accounting.count_parameters(shape), 1_870_000

        monkeypatch.setattr(race, "trial", trial)
        config = race.fitted(race.RECIPE, 285, 200_000)
        assert config.n_embd == width
        assert config.n_embd // config.n_head == race.HEAD
        evaluation = race.FORWARD * seconds * 200_000 / 2048
        fit = (285 - evaluation) / seconds
        assert 0.99 * fit - 1 < config.max_steps <= fit
        assert (config.dropout > 0) == (config.max_steps * 2048 > 4 * 1_870_000)


@pytest.mark.parametrize("minutes", ["0", "61", "nan"])
def test_bad_minutes_are_one_line(minutes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["race", "--minutes", minutes])
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
