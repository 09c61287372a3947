"""The documents: commands are accepted, code prints what the page says, and messages exist."""

import ast
import contextlib
import io
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import tyro

from cs336_course.cli import Command
from cs336_lib import cli
from cs336_lib.config import CHANGEABLE, PRESETS

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / name
    for name in ("README.md", "docs/package.md", "docs/cluster.md", "docs/reproduce_gpt2.md")
]
TEXT = (ROOT / "docs" / "reproduce_gpt2.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, flags=re.S)
PRESET = PRESETS["gpt2-124m"][1]
RUN = "runs/gpt2-124m"
needs_bash = pytest.mark.skipif(sys.platform != "linux", reason="needs bash 4.4")


def lines(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command in the shell blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M):
        if kind in ("", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield words


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of every `cs336` and every `-m cs336_lib` of a page."""
    found = []
    for words in lines(page):
        if "||" in words:
            words = words[: words.index("||")]
        if words[0] == "cs336":
            found.append(words[1:])
        elif words[0] == "torchrun" and "cs336_lib" in words:
            found.append(words[words.index("cs336_lib") + 1 :])
    return found


def parse(arguments: list[str]) -> Command:
    """Read the arguments of a command as `cs336` does."""
    return cli.parse(arguments, Command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_understood(page):
    assert len(commands(page)) >= 4
    for arguments in commands(page):
        assert parse(arguments), arguments


def test_every_block_of_code_prints_what_the_page_says():
    kinds = [kind for kind, _ in BLOCKS]
    session: dict = {}  # one for all, as the page says
    for number, (kind, code) in enumerate(BLOCKS):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, session)
            assert (kinds[number + 1], printed.getvalue()) == BLOCKS[number + 1], code
    assert kinds.count("python") == kinds.count("text") >= 8


def test_the_file_of_the_learner_makes_the_run_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    fields = ["batch_tokens", "block_size", "eval_tokens", "n_layer", "n_embd", "n_head", "seed"]
    fields += ["max_steps", "learning_rate", "warmup_steps", "weight_decay"]
    starts = [words for words in lines(PAGES[-1]) if "train_gpt2.py" in words]
    assert starts
    for words in starts:
        arguments = words[words.index("train_gpt2.py") + 1 :]
        config = tyro.cli(import_module("train_gpt2").Config, args=arguments)
        for field in fields:
            assert math.isclose(getattr(config, field), getattr(PRESET, field)), field


def test_the_train_commands_are_the_preset_but_for_what_changes_no_result():
    told = [arguments for arguments in commands(PAGES[-1]) if arguments[0] == "train"]
    for arguments in told[:2]:
        config = parse(arguments).config
        changed = {n for n, v in vars(config).items() if v != getattr(PRESET, n)}
        assert changed <= {"train_data", *CHANGEABLE}
        assert (config.resume, config.run_dir) == (True, RUN)


def test_torchrun_and_slurm_leave_time_to_save():
    """torchrun kills the processes 30 seconds after SIGTERM by default."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    if "--shutdown-timeout" not in parser.format_help():
        pytest.skip("PyTorch 2.11 has no such option, as docs/cluster.md says")
    started = [words[1:] for page in PAGES[2:] for words in lines(page) if words[0] == "torchrun"]
    started = [words for words in started if {"gpt2-124m", "gpt2-xl"} & set(words)]
    assert len(started) == 3
    for words in started:
        assert parser.parse_args(words).shutdown_timeout == 300, words
    slurm = (ROOT / "reproduce" / "gpt2_124m.slurm").read_text()
    assert "#SBATCH --signal=TERM@360\n" in slurm
    assert "--shutdown-timeout=300 " in slurm  # then a minute is left to put the job back


@needs_bash
@pytest.mark.parametrize("name", ["reproduce/gpt2_124m.sh", "reproduce/gpt2_124m.slurm", ".ci/run"])
def test_shellcheck_has_no_complaint(name):
    command = [f"{sys.prefix}/bin/shellcheck", ROOT / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def template(node: ast.AST) -> str:
    """Return the text of a string, with an ellipsis for each value, or "" for other nodes."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) or "…" for value in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return ""


def test_every_symptom_is_a_message_of_the_code():
    known = {re.sub(r"\$\(\w+\)|\{[^}]+\}(\.\{[^}]+\})?", "…", (ROOT / "Makefile").read_text())}
    for path in (*ROOT.glob("cs336_*/**/*.py"), *ROOT.glob("tools/*.py")):
        known |= set(map(template, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    quoted = re.findall(r"^### `(.+)`$", (ROOT / "docs" / "symptoms.md").read_text(), re.M)
    assert len(quoted) == len(set(quoted)) >= 25
    for message in quoted:
        pattern = ".*".join(re.escape(part) for part in message.split("…"))
        assert any(re.search(pattern, text) for text in known), message


def test_links_lead_somewhere():
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "data" / "README.md"):
        for target in re.findall(r"\]\(([^)#:]+)[)#]", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
