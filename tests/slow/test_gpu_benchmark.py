"""Test that `benchmarks.gpu` keeps finished parts if it is killed."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat

from benchmarks import common
from tools.notebooks import KERNEL

ENVIRONMENT = os.environ | {"PYTHONPATH": str(common.ROOT)}
PROGRAM = """
import sys
from pathlib import Path
from benchmarks import common, gpu
from cs336_course.pages.gpt2_speed.story import TINY

if __name__ == "__main__":
    common.RESULTS, gpu.NOTEBOOKS = Path(sys.argv[1]), Path(sys.argv[2])
    gpu.shape_for = lambda device: TINY
    gpu.main(device="cpu", parts=("prediction", "training", "notebooks"))
"""


def parts(folder: Path) -> dict:
    """The results that are stored so far."""
    return {
        name: part
        for path in folder.glob("gpu_*.json")  # no temporary file: a kill would leave it behind
        for name, part in json.loads(path.read_text(encoding="utf-8"))["parts"].items()
    }


def test_a_killed_benchmark_goes_on_after_its_last_part(tmp_path):
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    outputs = [nbformat.v4.new_output("stream", text="42\n")]
    cell = nbformat.v4.new_code_cell("print(6 * 7)", execution_count=1, outputs=outputs)
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, notebooks / "short.ipynb")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    results = tmp_path / "results"
    command = [sys.executable, str(program), str(results), str(notebooks)]
    with subprocess.Popen(command, cwd=common.ROOT, env=ENVIRONMENT) as first:
        while not parts(results):
            assert first.poll() is None
            time.sleep(0.05)
        first.kill()
    before = parts(results)
    assert before.keys() == {"prediction"}
    done = subprocess.run(
        command, cwd=common.ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    after = parts(results)
    assert after["prediction"] == before["prediction"]
    assert after.keys() == {"prediction", "training", "short"}
    assert after["training"]["tokens_per_second"] > 0
    assert re.search("notebooks that fail +0.00  reached", done.stdout)
