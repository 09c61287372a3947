"""The names that the package exports, and what its quick commands import."""

import subprocess
import sys

NAMES = "GPT, GPTConfig, TrainConfig, generate, train"
# What `cs336 --help`, estimate, simulate, check, lab, assemble and fetch import, which shouldn't
# wait for PyTorch
QUICK = """
cs336_course.cli cs336_lib.bill.text cs336_course.learner.study
cs336_lib.data.prepare cs336_course.learner.lab cs336_course.one_file.assemble cs336_course.fetch
""".split()


def printed(program: str) -> str:
    """Return what a program prints."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_modules_of_a_similar_name_do_not_hide_a_function():
    modules = "cs336_lib.cli, cs336_lib.sampling, cs336_lib.training.loop"
    program = f"import {modules}; from cs336_lib import {NAMES}; print(*map(callable, [{NAMES}]))"
    assert printed(program).split() == ["True"] * 5


def test_quick_commands_do_not_load_torch():
    assert printed(f"import sys, {', '.join(QUICK)}; print('torch' in sys.modules)") == "False\n"
