"""Assemble the one-file trainer that a learner writes in notebooks 07 to 10."""

import ast
import importlib
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from cs336_lib.classroom import study
from cs336_lib.config import require
from cs336_lib.io import write_atomic

FIRST, LAST = "07", "10"  # the notebooks that hold parts
UNTOUCHED = "not attempted yet"

HEADER = '''"""Train GPT-2 in one file, on one device or on many.

    python train_gpt2.py --train "fineweb/train_*.bin" --val "fineweb/val_*.bin"
    torchrun --standalone --nproc-per-node=8 train_gpt2.py --train ... --val ...

The defaults are GPT-2 124M's recipe on 10 billion tokens. Notebooks 07 to 10 build each part.
"""

import glob
import json
import math
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # so that torch's waiting threads sleep

import numpy as np
import tiktoken
import torch
import torch.distributed as dist
import torch.nn.functional as F
import tyro
from einops import rearrange
from safetensors.torch import load_file, save
from tiktoken.load import load_tiktoken_bpe
from tiktoken_ext.openai_public import r50k_pat_str
from torch import Tensor, nn


@dataclass
class Config:
    """The model's shape and the recipe."""

    train: str = "fineweb/train_*.bin"  # shards of GPT-2's tokens, in llm.c's format
    val: str = "fineweb/val_*.bin"
    out: str = "log"
    init_from: str = ""  # model.safetensors of an earlier run or a Hugging Face GPT-2
    hellaswag: str = ""  # HellaSwag's examples, in JSON lines
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    block_size: int = 1024
    vocab_size: int = 50257
    padded_vocab_size: int = 50304  # a multiple of 64
    max_steps: int = 19073  # of 524,288 tokens each, so 10 billion in all
    batch_tokens: int = 524288
    micro_batch_size: int = 16
    learning_rate: float = 6e-4
    min_learning_rate: float = 6e-5
    warmup_steps: int = 715
    weight_decay: float = 0.1
    grad_clip: float = 1.0  # 0 doesn't clip
    seed: int = 1337
    eval_every: int = 250  # steps between evaluations and saved weights; 0: only at the end
    eval_tokens: int = 1048576
    bf16: bool = True
    compile: bool = torch.cuda.is_available()
'''

FOOTER = """if __name__ == "__main__":
    train(tyro.cli(Config))
"""


@dataclass(frozen=True)
class Part:
    """A part of the assembled file.

    Attributes:
        name: Name of the part. A later notebook can define a new part with the same name.
        notebook: Number of the notebook that defines the part, such as "07".
        code: Source code of the part.
        given: Whether the notebook provides the code. If not, the part is an exercise.
        missing: Reason why the learner's solution isn't used, or "" if it is used.
    """

    name: str
    notebook: str
    code: str
    given: bool
    missing: str = ""

    @property
    def is_mine(self) -> bool:
        """Whether the learner wrote this part."""
        return not self.given and not self.missing


def parts(folder: Path | None, until: str = LAST) -> list[Part]:
    """Read the parts from notebooks 07 to `until` in `folder`.

    If the learner's code for an exercise passes the check, it is used. Otherwise, the reference
    solution is used. Without a folder, the notebooks are those in the current folder, and the
    course's for those that aren't there.

    Raises:
        FileNotFoundError: If a notebook is missing.
    """
    found: dict[str, Part] = {}
    namespace = fresh_namespace()
    for number in (f"{n:02}" for n in range(int(FIRST), int(until) + 1)):
        for part in read_notebook(notebook_path(folder, number), namespace):
            earlier = found.get(part.name)
            if earlier is None or part.is_mine or not earlier.is_mine:
                found[part.name] = part
            exec(found[part.name].code, namespace)
    return list(found.values())


def notebook_path(folder: Path | None, number: str) -> Path:
    """Return the path of a notebook by its number."""
    for place in [folder] if folder else [Path.cwd(), study.SHIPPED]:
        if paths := sorted(place.glob(f"{number}_*.ipynb")):
            return paths[0]
    raise FileNotFoundError(
        f"{place.resolve()}: no notebook {number}_*.ipynb; give the folder of the notebooks"
    )


def fresh_namespace() -> dict[str, Any]:
    """Execute the header of the assembled file, and return the names that it defines."""
    module = ModuleType("train_gpt2")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(HEADER, module.__dict__)
    return module.__dict__


def read_notebook(path: Path, namespace: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of a notebook. `namespace` contains the names defined by earlier parts."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError):
        raise ValueError(f"{path}: not a notebook") from None
    number = path.stem[:2]
    sources = ["".join(cell["source"]) for cell in cells]
    checks = next(
        found[1]
        for source in sources
        if (found := re.search(r"from cs336_lib.classroom.checks import (\w+) as checks", source))
    )
    module = importlib.import_module(f"cs336_lib.classroom.checks.{checks}")
    for place, cell in enumerate(cells):
        marks = cell["metadata"].get("cs336", {})
        if "part" not in marks:
            continue
        name, source = marks["part"], sources[place].strip()
        if "exercise" not in marks:
            yield Part(name, number, source, given=True)
            continue
        code, last_line = source.rsplit("\n", 1)
        missing = reason(code, last_line, {**namespace, "checks": module})
        if missing:
            exercise = marks["exercise"]
            code = solution(cells, exercise) or solution(course_cells(number), exercise)
        yield Part(name, number, code.strip(), False, missing)


def course_cells(number: str) -> list[dict[str, Any]]:
    """Return the cells of a notebook of the course by its number."""
    return json.loads(notebook_path(study.SHIPPED, number).read_text(encoding="utf-8"))["cells"]


def solution(cells: Sequence[Mapping[str, Any]], exercise: str) -> str:
    """Return the printed solution of an exercise, or "" if a handout leaves it out."""
    found = False
    for cell in cells:
        name = cell["metadata"].get("cs336", {}).get("exercise")
        found = name == exercise if name else found
        if found and "solution" in cell["metadata"].get("tags", []):
            (block,) = re.findall(r"```python\n(.*?)```", "".join(cell["source"]), flags=re.S)
            return block
    return ""


def reason(code: str, last_line: str, namespace: dict[str, Any]) -> str:
    """Run the check of an exercise, and return the reason for a failure or "".

    Args:
        code: Code of the cell without its last line.
        last_line: Line that calls the check, such as `MLP = checks.mlp(MLP)`.
        namespace: Names that the code may use.
    """
    if "raise NotImplementedError" in code:
        return UNTOUCHED
    try:
        exec(code, namespace)
        call = ast.parse(last_line).body[0].value  # type: ignore[attr-defined]
        answers = [eval(ast.unparse(argument), namespace) for argument in call.args]
        eval(ast.unparse(call.func), namespace).__wrapped__(*answers)
    except NameError as error:
        return f"{error} in train_gpt2.py; import it in the cell"
    except Exception as error:  # the learner's own code may raise anything
        return str(error) or type(error).__name__
    return ""


def text(found: list[Part]) -> str:
    """Join parts into the text of a file.

    If the learner wrote at least one part, comments mark the reference solutions.
    """
    marked = any(part.is_mine for part in found)
    pieces = [HEADER.rstrip()]
    for part in found:
        mark = f"# From the solutions of notebook {part.notebook}.\n" if part.missing else ""
        pieces.append((mark if marked else "") + part.code)
    return "\n\n\n".join([*pieces, FOOTER])


def write(path: Path, folder: Path | None = None, overwrite: bool = False) -> list[Part]:
    """Assemble the file, and return its parts.

    Args:
        path: File to write.
        folder: Folder of the notebooks (default: as in `parts`).
        overwrite: Whether to replace an existing file.

    Raises:
        FileExistsError: If the file exists and `overwrite` is off.
        FileNotFoundError: If a notebook is missing.
    """
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; pass --overwrite, or another name with --out")
    found = parts(folder)
    write_atomic(path, text(found))
    return found


def module(until: str = LAST, folder: Path | None = None) -> ModuleType:
    """Assemble the parts up to notebook `until`, and import them as a module.

    Example:
        >>> model = assemble.module("07").GPT(GPTConfig())
    """
    require(FIRST <= until <= LAST, f"until is {until!r}; a notebook from 07 to 10 expected")
    made = ModuleType("train_gpt2")
    sys.modules[made.__name__] = made
    pieces = [HEADER, *(part.code for part in parts(folder, until))]
    sys.modules[made.__name__] = made
    exec("\n\n\n".join(pieces), made.__dict__)
    return made


def progress(until: str = LAST, folder: Path | None = None) -> str:
    """Describe the length of the assembled file, and which parts the learner wrote."""
    return describe(parts(folder, until))


def describe(found: list[Part]) -> str:
    """Summarize which parts the learner wrote, and why other parts use the reference solution."""
    lines = sum(1 for line in text(found).splitlines() if line.strip())
    groups = {
        "yours": [part.name for part in found if part.is_mine],
        "given": [part.name for part in found if part.given],
        "from the solutions": [part.name for part in found if part.missing == UNTOUCHED],
    }
    rows = [f"train_gpt2.py: {len(found)} parts, {lines} lines without the blank ones"]
    for title, names in groups.items():
        row = f"{title}: {', '.join(names) or 'none'}"
        rows.append(textwrap.fill(row, 96, subsequent_indent="  "))
    wrong = [p for p in found if p.missing not in ("", UNTOUCHED)]
    rows += [
        f"from the solutions, because yours isn't right yet: {p.name} ({p.missing})" for p in wrong
    ]
    return "\n".join(rows)
