"""Grade a learner in a container of the course's image."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from cs336_course.grading import answers
from cs336_course.grading.answers import Limits
from cs336_course.grading.report import Result
from cs336_course.grading.submissions import copy_files
from cs336_course.learner import study
from cs336_course.one_file.cell_slice import read_code
from cs336_course.one_file.processes import ERROR, NO_RESULT
from cs336_lib import __version__
from cs336_lib.config import UserError

ENGINES = ("docker", "podman")
INSIDE = "/answers"  # the learner's files in a container
TEMPORARY_GB = 1  # files that an answer writes in a container
PYTORCH_GB = 2  # what PyTorch takes without an answer
PROCESSES = 512  # in a container
RUN = "from cs336_course.grading import container; container.main({0.seconds}, {0.memory_gb})"


def command(image: str, folder: Path, limits: Limits) -> list[str]:
    """Return the command that grades a learner in a new container, which ends with its stdin.

    Args:
        image: The course's image. It isn't downloaded.
        folder: Folder with the learner's files, which the container only reads.
        limits: Limits of each answer.

    Raises:
        UserError: If this isn't the name of an image, or there is no program for containers.
    """
    if image.startswith("-"):
        raise UserError(f"--container is {image!r}; the name of an image expected")
    engine = next(filter(shutil.which, ENGINES), None)
    if engine is None:
        raise UserError("--container needs docker or podman; neither is on the PATH")
    memory = f"{int((limits.memory_gb + PYTORCH_GB + TEMPORARY_GB) * 1e9)}b"
    bounds = ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(PROCESSES)]
    rights = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "1000:1000"]
    files = ["--read-only", "--volume", f"{folder}:{INSIDE}:ro,Z"]
    # PyTorch loads the libraries that it compiles from there.
    files += ["--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={TEMPORARY_GB}g"]
    run = [engine, "run", "--rm", "--interactive", "--pull", "never", "--network", "none"]
    run += [*rights, *files, *bounds, "--env", "HOME=/tmp", "--workdir", "/tmp"]
    return [*run, "--entrypoint", "python", image, "-Ps", "-c", RUN.format(limits)]


def try_out(image: str, home: Path, limits: Limits) -> None:
    """Start a container, and look at its version of the course.

    Raises:
        RuntimeError: If it doesn't start.
        UserError: If it has another version, or as `command` says.
    """
    (home / "work").mkdir()
    words = command(image, home / "work", limits)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    version = done.stdout.partition("\n")[0]
    if not version:
        raise RuntimeError("".join(done.stderr.strip().splitlines()[-1:]) or "no answer")
    if version != __version__:
        raise UserError(f"the image has cs336-lib {version}, and this is {__version__}")


def graded(image: str, folder: Path, limits: Limits) -> Iterator[Result]:
    """Yield the verdict on each exercise of the course, for the learner's files in a folder."""
    left = [
        (study.name_of(path, study.SHIPPED), name)
        for path in study.originals(study.SHIPPED)
        for _, name in read_code(path)
        if name
    ]
    words, pipe = command(image, folder, limits), subprocess.PIPE
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its version
        for page, name in left:
            try:
                verdict, said = json.loads(process.stdout.readline())
            except ValueError:  # it has ended
                verdict, said = ERROR, NO_RESULT
            yield Result(page, name, str(verdict), str(said))


def main(seconds: float, memory_gb: float) -> None:
    """Grade the learner whose files a container has, and write a verdict per line to stdout."""
    print(__version__, flush=True)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    work = Path.home() / "work"
    copy_files(Path(INSIDE), work)
    with answers.process_in(Path.home()) as process:
        limits = Limits(seconds, memory_gb)
        for result in answers.graded(Path(INSIDE), work, process, limits):
            print(json.dumps([result.verdict, result.said]), flush=True)


def end_with_stdin() -> None:
    """Wait until nobody waits for the verdicts any more, and end this process."""
    sys.stdin.read()
    os._exit(1)
