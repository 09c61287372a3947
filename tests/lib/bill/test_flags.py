"""Every flag of `cs336 simulate` counts: in each row of a search, and in the command under it."""

import random
import re
import shlex
from typing import Any

import pytest

from cs336_lib import cli
from cs336_lib.bill import text
from cs336_lib.config import SimulateConfig, UserError
from cs336_lib.system.datasheets import LINKS

COLUMNS = ("tp", "pp", "dp", "ep", "chunks", "zero", "micro_batch", "recompute")
MODELS = ("gpt2", "qwen3-0.6b", "qwen3-30b-a3b")
VALUES: dict[str, tuple[Any, ...]] = {
    "gpus": (1, 2, 3, 4, 8, 12, 16, 32),
    "hardware": ("a100", "h100", "b200", "mi300x", "tpu-v5p"),
    "inner": ("nvlink3", "pcie5"),
    "outer": ("infiniband-hdr", "ethernet-10g"),
    "batch": (4, 8, 24, 48, 64, 100),
    "seq": (512, 1000, 1023, 2048),
    "tp": (1, 2, 3, 4),
    "pp": (1, 2, 3, 4),
    "dp": (1, 2, 4, 5),
    "cp": (1, 2, 3, 4),
    "ep": (1, 2, 3, 4, 8),
    "zero": (0, 1, 2, 3),
    "chunks": (1, 2, 3),
    "schedule": ("1f1b", "gpipe", "zb-h1", "dualpipe"),
    "micro_batch": (1, 2, 3, 4),
    "recompute": ("none", "selective", "full"),
    "straggler": (1.0, 1.37, 2.0),
    "save": (0.01, 90.5),
    "restart": (30.0,),
}


def combinations(count: int) -> list[dict[str, Any]]:
    """Return models with up to seven flags. A third of them has --tp and --pp."""
    drawn = random.Random(336)
    found = []
    for number in range(count):
        ways = ("tp", "pp") if number % 3 == 0 else ()
        names = dict.fromkeys((*ways, *drawn.sample(list(VALUES), number % 8)))
        options = {name: drawn.choice(VALUES[name]) for name in names}
        found.append({"model": drawn.choice(MODELS), **options})
    return found


def words(options: dict[str, Any]) -> list[str]:
    """Return the words of a command line."""
    flags = ([f"--{name.replace('_', '-')}", str(value)] for name, value in options.items())
    return ["simulate", *(word for flag in flags for word in flag)]


def printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints."""
    capsys.readouterr()
    cli.main(command)
    return capsys.readouterr().out


def advised(message: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options after the first change that a refusal advises."""
    advice = message.rpartition("; ")[2].split(" or ")[0]
    flags = [words.replace("-", "_") for words in re.findall(r"--([a-z-]+)", advice)]
    assert flags, message
    if advice.startswith("leave out"):
        return {name: value for name, value in options.items() if name not in flags}
    values = re.findall(r"--[a-z-]+ (\d+)", advice)
    return options | dict(zip(flags, map(int, values), strict=True))


def check_rows(said: str, options: dict[str, Any]) -> None:
    """Check that each row has what the flags set."""
    *rows, _, _, _ = said.splitlines()[2:]
    assert rows
    for row in rows:
        cells = dict(zip(COLUMNS, row.split(), strict=False))
        for name in COLUMNS:
            assert cells[name] == str(options.get(name, cells[name])), (name, row)
        ways = [int(cells[name]) for name in ("tp", "pp", "dp")]
        assert ways[0] * ways[1] * ways[2] * options.get("cp", 1) == options.get("gpus", 8)


def check_details(details: str, options: dict[str, Any]) -> None:
    """Check that the details of a layout have what the flags set."""
    heading, layout = details.splitlines()[:2]
    for way in ("tp", "pp", "dp", "cp", "ep"):
        if way in options:
            assert f"{way} {options[way]}," in layout
    assert f"ZeRO-{options['zero']}," in layout if "zero" in options else True
    if "chunks" in options and options.get("schedule", "1f1b") == "1f1b":
        assert ("interleaved" in layout) == (options["chunks"] > 1)
    elif "schedule" in options and options["schedule"] != "1f1b":
        assert f" {options['schedule']}," in layout
    passes, size, seq = re.search(
        r"(\d+) micro-batches of (\d+) x ([\d,]+) tokens", layout
    ).groups()
    dp = int(re.search(r"dp (\d+)", layout)[1])
    gpus = options.get("gpus", 8)
    assert int(passes) * int(size) * dp == options.get("batch", 2 * gpus)
    assert int(seq.replace(",", "")) == options.get("seq", int(seq.replace(",", "")))
    assert int(size) == options.get("micro_batch", int(size))
    device = text.find_device(options.get("hardware", "h100"))
    assert f" on {gpus:,} x {device.name}" in heading
    links = next(line for line in details.splitlines() if line.startswith("  links"))
    assert LINKS[options.get("inner", device.links.inner)].name in links
    outer = LINKS[options.get("outer", device.links.outer)].name
    assert (outer in links) == (gpus > device.links.machine)
    assert ("times as slow" in details) == (options.get("straggler", 1) > 1)


def check(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """Check what a combination prints, and that its advice or its command works.

    Returns:
        What the combination is: "refused", "details" or "search".
    """
    capsys.readouterr()
    try:
        cli.main(words(options))
    except SystemExit:
        refused = capsys.readouterr().err.strip()
        assert "\n" not in refused
        if "seq is " not in refused and "other --hardware" not in refused:
            assert "MFU" in printed(words(advised(refused, options)), capsys)
        return "refused"
    said = capsys.readouterr().out
    if "tp" in options and "pp" in options:
        check_details(said, options)
        if remedy := re.search(r"; it fits with (--.*)", said):
            assert "; it fits\n" in printed([*words(options), *remedy[1].split()], capsys)
        return "details"
    check_rows(said, options)
    details = printed(shlex.split(said.splitlines()[-1])[1:], capsys)
    check_details(details, options)
    first = said.splitlines()[2].split()
    assert f"  step     {first[8]} s: " in details
    assert f"  speed    {first[10]} MFU" in details
    assert "it fits" in details
    return "search"


def test_every_flag_counts(capsys):
    """Searches, details and refusals occur, and each flag is in a search that succeeds."""
    kinds: dict[str, list[dict[str, Any]]] = {"search": [], "details": [], "refused": []}
    for options in combinations(120):
        try:
            kinds[check(options, capsys)].append(options)
        except AssertionError as error:
            raise AssertionError(shlex.join(words(options))) from error
    assert min(map(len, kinds.values())) >= 8
    usual = SimulateConfig()
    searched = {
        name for one in kinds["search"] for name in one if one[name] != getattr(usual, name)
    }
    assert searched >= set(VALUES)


def test_an_unknown_link_needs_its_flag():
    for flags, flag in (
        ({"hardware": "mi355x"}, "inner"),
        ({"hardware": "rtx-4090", "gpus": 16}, "outer"),
    ):
        options = {"model": "gpt2", **flags}
        with pytest.raises(UserError, match=f"no {flag} link of .* is known; .* --{flag}$"):
            text.simulation(**options)
        assert "layouts fit" in text.simulation(**options, **{flag: "ethernet-100g"})
        assert "layouts fit" in text.simulation(**options | {"gpus": 1})  # needs no link
