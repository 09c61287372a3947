"""What the course itself costs: importing the package, opening the lab, running every notebook.

    python -m benchmarks.course [--notebooks]

Run from a clone in which `make test` has been run. The last line, `ratio R`, is the time of
`import torch` and `import cs336_lib`'s modules together over that of `import torch` alone.
"""

import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

import torch
import tyro

from benchmarks import common
from cs336_course.shared import stopwatch
from cs336_lib.config import UserError

IMPORTS = {
    "torch": "import torch",
    "ours": "import torch, cs336_lib.training.loop, cs336_lib.sampling, cs336_lib.accounting",
}


def imported(code: str) -> float:
    """Seconds from the start of a fresh Python to the end of the imports."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def lab_seconds(port: int) -> float:
    """Seconds from `make lab` to a page that is served."""
    arguments = f"ARGS=--no-browser --port {port} --IdentityProvider.token=benchmark"
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments += " --allow-root"  # in a container, say
    start = time.perf_counter()
    lab = subprocess.Popen(
        ["make", "lab", arguments],
        cwd=common.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while time.perf_counter() - start < 120:
            if lab.poll() is not None:
                raise UserError("`make lab` ended at once; run it by hand to see why")
            try:
                page = f"http://localhost:{port}/lab?token=benchmark"
                with urllib.request.urlopen(page, timeout=5) as answer:
                    if answer.status != 200:
                        raise UserError(f"the lab answered {answer.status}")
                    return time.perf_counter() - start
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        raise UserError("the lab did not answer within two minutes")
    finally:
        lab.terminate()
        lab.wait()


def main(rounds: int = 5, port: int = 8931, notebooks: bool = False) -> None:
    """Measure the course.

    Args:
        rounds: how often each is done.
        port: where the lab is served.
        notebooks: also run `pytest --nbval notebooks/`, once.
    """
    seconds = stopwatch.seconds_in_turns(
        {name: lambda code=code: imported(code) for name, code in IMPORTS.items()},
        torch.device("cpu"),
        rounds=rounds,
    )
    added = statistics.median(
        ours - alone for ours, alone in zip(seconds["ours"], seconds["torch"], strict=True)
    )
    ratio = common.ratio(seconds["ours"], seconds["torch"])
    print(f"import torch   {statistics.median(seconds['torch']):.2f} s")
    print(f"ours on top    {added:.2f} s")
    lab = [lab_seconds(port) for _ in range(rounds)]
    print(f"make lab       {statistics.median(lab):.2f} s to a served page")
    result = {
        "machine": common.machine(torch.device("cpu")),
        "import_seconds": {name: common.spread(values) for name, values in seconds.items()},
        "import_adds_seconds": added,
        "lab_seconds": common.spread(lab),
        "ratio": ratio,
    }
    if notebooks:
        start = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-q", "--nbval", "notebooks/"]
        subprocess.run(command, cwd=common.ROOT, check=True, stdout=subprocess.DEVNULL)
        result["notebooks_seconds"] = time.perf_counter() - start
        print(f"notebooks      {result['notebooks_seconds']:.0f} s")
    print(common.write("course", result))
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
