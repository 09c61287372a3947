"""`cs336 race` ends in time, and leaves a run that everything else reads."""

import dataclasses
import json
import math

from cs336_lib import cli
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
    result = json.loads((tmp_path / "race" / "race.json").read_text())
    folder = ["--run-dir", str(tmp_path / "race")]
    cli.main(["sample", *folder, "--prompt", "Romeo:", "--max-new-tokens", "20"])
    assert capsys.readouterr().out.startswith("Romeo:")
    cli.main(["eval", *folder])
    bits = float(capsys.readouterr().out.split("bits per byte")[1])
    assert math.isclose(bits, result["bits_per_byte"], abs_tol=2e-3)
    cli.main(["report", folder[1]])
    assert f" {result['bits_per_byte']:.3f} " in capsys.readouterr().out
