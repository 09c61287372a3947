import math

import pytest

from cs336_lib.classroom.checks import gpt2_training as checks


def normalised(values):
    return [value / sum(values) for value in values]


@pytest.mark.parametrize(
    ("check", "answer", "verdict"),
    [
        ("bits_per_character", lambda loss: loss / math.log(2), "passed"),
        ("bits_per_character", lambda loss: loss * math.log(2), "you multiplied by ln 2"),
        ("bits_per_character", math.exp, "the perplexity"),
        ("bits_per_character", lambda loss: loss, "still nats"),
        ("bits_per_character", lambda loss: 1.0, "wrong for 4 ln 2"),
        ("epochs_seen", lambda c, n: c.max_steps * c.batch_tokens / n, "passed"),
        ("epochs_seen", lambda c, n: c.max_steps * c.batch_tokens * c.block_size / n, "as well"),
        ("epochs_seen", lambda c, n: c.max_steps / n, "not one"),
        ("epochs_seen", lambda c, n: n / (c.max_steps * c.batch_tokens), "upside down"),
        ("sharpened", lambda p, t: normalised([x ** (1 / t) for x in p]), "passed"),
        ("sharpened", lambda p, t: normalised([x**t for x in p]), "p ** (1 / T), not p ** T"),
        ("sharpened", lambda p, t: [x ** (1 / t) for x in p], "add up to"),
        ("sharpened", lambda p, t: p, "expected [0.667"),
    ],
)
def test_checks_diagnose(check, answer, verdict, capsys):
    getattr(checks, check)(answer)
    assert verdict in capsys.readouterr().out


@pytest.mark.parametrize("check", ["bits_per_character", "epochs_seen", "sharpened"])
def test_untouched_stub(check, capsys):
    def stub(*_):
        raise NotImplementedError

    getattr(checks, check)(stub)
    assert "not attempted yet" in capsys.readouterr().out
