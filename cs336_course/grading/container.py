"""Run learners' answers in a container, without a network and with read-only files."""

import secrets
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cs336_lib.config import UserError

ENGINES = ("docker", "podman")
INSIDE = "/answers"  # the learner's files in the container
RUN = """
from cs336_course.grading import answer_process
from cs336_course.learner import study
answer_process.main(study.SHIPPED)
"""
TEMPORARY_GB = 1  # files that an answer writes
PYTORCH_GB = 2  # what PyTorch takes without an answer
PROCESSES = 512
REMOVE = 60  # seconds


def engine() -> str:
    """Return the program that runs containers.

    Raises:
        UserError: If there is none.
    """
    for name in ENGINES:
        if shutil.which(name):
            return name
    raise UserError("--container needs docker or podman; neither is on the PATH")


def command(engine: str, name: str, image: str, folder: Path, memory_gb: float) -> list[str]:
    """Return the command that runs answers in a new container.

    Args:
        engine: The program that runs containers.
        name: Name of the container.
        image: The course's image. It isn't downloaded.
        folder: Folder with the learner's files, which the container only reads.
        memory_gb: Memory limit of an answer in GB.
    """
    memory = f"{int((memory_gb + PYTORCH_GB + TEMPORARY_GB) * 1e9)}b"
    limits = ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(PROCESSES)]
    rights = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "1000:1000"]
    files = ["--read-only", "--volume", f"{folder}:{INSIDE}:ro,Z"]
    # PyTorch loads the libraries that it compiles from there.
    files += ["--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={TEMPORARY_GB}g"]
    settings = ["HOME=/tmp", "TMPDIR=/tmp", "MPLBACKEND=agg", "OMP_NUM_THREADS=1"]
    values = [word for setting in settings for word in ("--env", setting)]
    run = [engine, "run", "--rm", "--interactive", "--name", name, "--pull", "never"]
    run += ["--network", "none", *rights, *files, *limits, *values, "--workdir", "/tmp"]
    return [*run, "--entrypoint", "python", image, "-Ps", "-c", RUN]


@dataclass(frozen=True)
class Container:
    """A container of an image. Its name is new, so that nothing else is removed with it.

    Attributes:
        image: The course's image.
        engine: The program that runs containers.
        name: Name of the container.
    """

    image: str
    engine: str = field(default_factory=engine)
    name: str = field(default_factory=lambda: f"cs336-grade-{secrets.token_hex(8)}")

    def __post_init__(self) -> None:
        if not self.image or self.image.startswith("-"):
            raise UserError(f"--container is {self.image!r}; the name of an image expected")

    def command(self, folder: Path, memory_gb: float) -> list[str]:
        """Return the command that runs answers in it."""
        return command(self.engine, self.name, self.image, folder, memory_gb)

    def remove(self) -> None:
        """End the container, which doesn't end with the program that started it."""
        remove = [self.engine, "rm", "--force", self.name]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(remove, capture_output=True, timeout=REMOVE, check=False)
