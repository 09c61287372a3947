"""Start the process that runs answers, here or in a container, and send it jobs."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs336_course.grading.report import ERROR, printable
from cs336_course.learner import study
from cs336_course.one_file.processes import OPEN, EndedError, Process, SlowError
from cs336_lib import __version__
from cs336_lib.config import UserError

TIME = "time limit"
ENGINES = ("docker", "podman")
INSIDE = "/answers"  # the learner's files in a container
TEMPORARY_GB = 1  # files that an answer writes in a container
PYTORCH_GB = 2  # what PyTorch takes without an answer
PROCESSES = 512  # in a container
RUN = "from cs336_course.grading import answer_process; answer_process.main()"
RELAY = "from cs336_course.grading import runner; runner.relay()"


@dataclass(frozen=True)
class Limits:
    """Limits of an answer.

    Attributes:
        seconds: Time in seconds, of a core or of waiting, including the check.
        memory_gb: Memory in GB, in addition to what PyTorch takes.
    """

    seconds: float = 120
    memory_gb: float = 8

    def __post_init__(self) -> None:
        for name in ("seconds", "memory_gb"):
            value = getattr(self, name)
            if not 0 < value < 1e6:
                raise UserError(f"{name} is {value}; a number above 0 expected")


class Runner:
    """Runs answers in a process, which starts again after an answer that ended it.

    Attributes:
        process: The process.
        limits: Limits of each answer.
        is_container: Whether the process is in a container, where `relay` keeps the time.
    """

    def __init__(self, process: Process, limits: Limits, is_container: bool = False):
        self.process, self.limits, self.is_container = process, limits, is_container

    def start(self) -> None:
        """Start the process.

        Raises:
            UserError: If it doesn't start, or has another version of the course.
        """
        try:
            self.process.start()
        except (OSError, RuntimeError) as error:
            said = printable(str(error)) or "no answer"
            raise UserError(f"cannot run answers: {said}") from None
        if self.process.ready != __version__:
            raise UserError(
                f"the image has cs336-lib {self.process.ready}, and this is {__version__}"
            )

    def verdict(self, job: Mapping[str, Any], work: Path, below: Path) -> tuple[str, str]:
        """Run an answer, and return the verdict and the diagnosis.

        Args:
            job: The answer, as `answer_process` reads it.
            work: Copy of the learner's files.
            below: Folder of the notebook in it.
        """
        seconds, memory = self.limits.seconds, self.limits.memory_gb
        root = INSIDE if self.is_container else str(work)
        job = {**job, "root": root, "below": str(below), "seconds": seconds, "memory_gb": memory}
        try:
            if self.process.running is None:
                self.start()
            verdict, said = self.process.do(job, None if self.is_container else seconds)
            return str(verdict), str(said)
        except SlowError:
            return TIME, ""
        except EndedError:
            return ERROR, "the code ended the process that runs it"
        except (UserError, ValueError, TypeError) as error:
            return ERROR, str(error)


@contextmanager
def runner(home: Path, limits: Limits, image: str = "") -> Iterator[Runner]:
    """Run answers within this block.

    Args:
        home: Home of the answers, whose folder `work` has the learner's files.
        limits: Limits of each answer.
        image: The course's image for a container, or "".
    """
    if image:
        (home / "work").mkdir(exist_ok=True)  # not there yet while the image is tried out
        made = Process(container(image, home / "work", limits.memory_gb))
    else:
        made = Process([sys.executable, "-Ps", "-c", RUN], environment(home), study.SHIPPED)
    with made:
        yield Runner(made, limits, bool(image))


def environment(home: Path) -> dict[str, str]:
    """Return few environment variables for the process, because others may hold secrets."""
    kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CS336_CPU_BF16")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]),
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # every answer runs on the CPU
    }


def container(image: str, folder: Path, memory_gb: float) -> list[str]:
    """Return the command that runs answers in a new container, which ends with its stdin.

    Args:
        image: The course's image. It isn't downloaded.
        folder: Folder with the learner's files, which the container only reads.
        memory_gb: Memory limit of an answer in GB.

    Raises:
        UserError: If this isn't the name of an image, or there is no program for containers.
    """
    if image.startswith("-"):
        raise UserError(f"--container is {image!r}; the name of an image expected")
    engine = next(filter(shutil.which, ENGINES), None)
    if engine is None:
        raise UserError("--container needs docker or podman; neither is on the PATH")
    memory = f"{int((memory_gb + PYTORCH_GB + TEMPORARY_GB) * 1e9)}b"
    limits = ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(PROCESSES)]
    rights = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "1000:1000"]
    files = ["--read-only", "--volume", f"{folder}:{INSIDE}:ro,Z"]
    # PyTorch loads the libraries that it compiles from there.
    files += ["--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={TEMPORARY_GB}g"]
    run = [engine, "run", "--rm", "--interactive", "--pull", "never", "--network", "none"]
    run += [*rights, *files, *limits, "--env", "HOME=/tmp", "--workdir", "/tmp"]
    return [*run, "--entrypoint", "python", image, "-Ps", "-c", RELAY]


def relay() -> None:
    """Run the jobs on stdin in a container, where a process of its own runs the answers."""
    home = Path.home()
    shutil.copytree(INSIDE, home / "work", symlinks=True)
    with runner(home, Limits()) as local:
        local.start()
        print(json.dumps(__version__), flush=True)
        for text in sys.stdin:
            job = json.loads(text)
            local.limits = Limits(job["seconds"], job["memory_gb"])
            print(OPEN, end="", flush=True)
            found = local.verdict(job, home / "work", Path(job["below"]))
            print(json.dumps([found, True]), flush=True)
