"""Test that the command line accepts every command in docs/cluster.md."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cs336_lib.cli import Train, parse

ROOT = Path(__file__).parents[2]
DOCS, REPRODUCE = ROOT / "docs", ROOT / "reproduce"


def commands() -> list[str]:
    """Return the arguments after `cs336` or `-m cs336_lib`, lines joined."""
    text = (DOCS / "cluster.md").read_text().replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    found = []
    for line in "\n".join(blocks).splitlines():
        match = re.search(r"(?:^cs336|-m cs336_lib) (train .*?)(?:#|\|\||$)", line)
        if match:
            found.append(match[1].strip())
    return found


def test_every_command_is_understood():
    assert len(commands()) >= 4
    for command in commands():
        assert isinstance(parse(shlex.split(command)), Train), command


def torchrun_commands() -> list[list[str]]:
    """Return the arguments of every torchrun that trains a GPT-2."""
    found = []
    for path in (DOCS / "cluster.md", DOCS / "reproduce_gpt2.md"):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
        for line in "\n".join(blocks).splitlines():
            match = re.search(r"^torchrun (.*? train gpt2.*?)(?:#|\|\||$)", line)
            if match:
                found.append(shlex.split(match[1]))
    slurm = (REPRODUCE / "gpt2_124m.slurm").read_text().replace("\\\n", " ")
    (launch,) = re.findall(r'^export LAUNCH="srun \S+/torchrun (.*?)"$', slurm, re.M)
    number = re.sub(r"\$\w+", "2", launch)
    found.append(shlex.split(f"{number} -m cs336_lib train gpt2-124m"))
    return found


def test_torchrun_leaves_time_to_save():
    """torchrun kills the processes 30 seconds after SIGTERM by default."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    if "--shutdown-timeout" not in parser.format_help():
        pytest.skip("PyTorch 2.11 has no such option, as docs/cluster.md says")
    assert len(torchrun_commands()) == 4
    for command in torchrun_commands():
        arguments = parser.parse_args(command)
        assert arguments.training_script == "cs336_lib"
        assert arguments.shutdown_timeout == 300, command


def test_slurm_sends_its_signal_early_enough():
    text = (REPRODUCE / "gpt2_124m.slurm").read_text()
    assert "#SBATCH --signal=TERM@360\n" in text
    assert "--shutdown-timeout=300 " in text  # then a minute is left to put the job back
    assert "(`--signal=TERM@360`)" in (DOCS / "cluster.md").read_text()


def test_the_slurm_file_is_bash():
    subprocess.run(["bash", "-n", REPRODUCE / "gpt2_124m.slurm"], check=True)


def test_a_parameter_takes_16_bytes():
    from cs336_lib import accounting
    from cs336_lib.config import GPTConfig

    per_parameter = accounting.bytes_per_parameter("adamw", "fp32").total
    assert per_parameter == 16
    xl = accounting.count_parameters(GPTConfig(n_layer=48, n_head=25, n_embd=1600))
    assert round(accounting.count_parameters(GPTConfig()) * 16 / 1e9) == 2
    assert round(xl * 16 / 1e9) == 25
    assert 4e9 * 16 < 80e9 <= 5e9 * 16
