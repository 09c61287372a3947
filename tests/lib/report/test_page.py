"""The page of a run makes no request, runs no foreign code, and its commands work."""

import dataclasses
import html
import json
import re
import shlex
from pathlib import Path

import pytest

from cs336_lib import cli
from cs336_lib.report import page
from cs336_lib.training.loop import train

HOSTILE = "</pre><script>alert(1)</script>\"'&"


@pytest.fixture
def run_dir(tiny_run) -> Path:
    """An unfinished run with samples, whose rows were then tampered with."""

    def stop(row):
        if row["step"] == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(dataclasses.replace(tiny_run, sample="To be"), on_step=stop)
    return Path(tiny_run.run_dir)


def test_a_page_of_an_unfinished_run(run_dir, capsys):
    metrics = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows = [row | {"mfu": 10**400} for row in rows]
    rows[-1] |= {"sample": HOSTILE, "lr": HOSTILE, "hellaswag": [1]}
    rows[2] |= {"skipped": True, "train_loss": None, "grad_norm": None}
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "tok')
    environment = run_dir / "environment.json"
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {"devices": 8}))
    cli.main(["report", str(run_dir), "--price", "1e6"])
    assert "report.html" in capsys.readouterr().out
    text = (run_dir / "report.html").read_text()
    assert not re.search(r"<(script|img|link|iframe|a)\b", text)
    assert all(link.startswith("#") for link in re.findall(r'(?:href|src)="([^"]*)"', text))
    text = html.unescape(text)
    assert HOSTILE in text
    assert "9 of 12" in text
    assert "Unfinished" in text
    assert "Beside the reference: no reference: no recorded run has this " in text
    assert "1 of 9 steps skipped for NaN or infinity: 2" in text
    hours = 8 * sum(row["step_ms"] for row in rows) / 3.6e6
    (dollars,) = re.findall(r"\$([\d,.]+) at \$1e\+06 per CPU", text)
    assert float(dollars.replace(",", "")) == pytest.approx(hours * 1e6, abs=0.01)
    for label in ("Loss", "Learning rate", "Gradient norm before clipping", "Throughput"):
        assert f'aria-label="{label}.' in text
    with pytest.raises(SystemExit):
        cli.main(["report", str(run_dir)])
    assert "--overwrite" in capsys.readouterr().err


def test_the_commands_on_the_page_parse(run_dir):
    run, _ = page.read(run_dir)
    resume, *others = page.commands(run)
    words = shlex.split(resume)
    wanted = dataclasses.replace(run.config, resume=True)
    assert cli.parse(words[1:]).config == wanted
    for command in others:
        cli.parse(command.split()[1:])
