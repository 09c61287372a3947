"""The page of a run makes no request, runs no foreign code, and every text on it is escaped."""

import dataclasses
import html
import json
import re
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
    assert not re.search("<(script|img|link|iframe|a)[ >]", text)
    assert all(link.startswith("#") for link in re.findall(r'(?:href|src)="([^"]*)', text))
    assert html.escape(HOSTILE) in text
    for said in (
        "9 of 12",
        "Unfinished",
        "Beside the reference: no reference: no recorded run has this ",
        "1 of 9 steps skipped for NaN or infinity: 2",
    ):
        assert said in text
    hours = 8 * sum(row["step_ms"] for row in rows) / 3.6e6
    (dollars,) = re.findall(r"\$([\d,.]+) at \$1e\+06 per CPU", text)
    assert float(dollars.replace(",", "")) == pytest.approx(hours * 1e6, abs=0.01)
    labels = re.findall(r'aria-label="([^.]*)', text)
    assert labels == ["Loss", "Learning rate", "Gradient norm before clipping", "Throughput"]
    with pytest.raises(SystemExit):
        cli.main(["report", str(run_dir)])
    assert "--overwrite" in capsys.readouterr().err


def test_a_run_without_an_environment_and_a_damaged_one(run_dir, capsys):
    page.read(run_dir)
    assert not capsys.readouterr().err
    for name in ("metrics.jsonl", "environment.json"):
        (run_dir / name).write_text((run_dir / name).read_text().replace("1", "2"))
    page.read(run_dir)
    assert capsys.readouterr().err.count("not as it was") == 2
    (run_dir / "environment.json").write_text('{"devices": 1e9}')
    with pytest.raises(ValueError, match="a number of devices expected"):
        page.read(run_dir)
    (run_dir / "environment.json").unlink()
    run, environment = page.read(run_dir)
    assert "device hours" in page.costs(run, environment)
    assert "didn't record" in page.page(run, environment, [])
