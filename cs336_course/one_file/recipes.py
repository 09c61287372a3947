"""The files that `cs336 assemble` can write, with their notebooks, settings and sections."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cs336_lib.config import UserError

IMPORTS = """
import json
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # so that torch's waiting threads sleep

import numpy as np
import tiktoken
import torch
import torch.distributed as dist
import torch.nn.functional as F
import tyro
from einops import rearrange
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
"""

CONFIG = '''
@dataclass(frozen=True)
class Config:
    """The model's shape and the recipe."""

    data: str = "fineweb"  # folder of shards of tokens, which `cs336 prepare` writes
    out: str = "log"  # folder of the log, the checkpoint and the weights
    init_from: str = ""  # model.safetensors of an earlier run or of a Hugging Face GPT-2
    hellaswag: str = ""  # HellaSwag's examples, in JSON lines
    prompt: str = "Hello, I'm a language model,"  # which evaluations continue ("": a new text)
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    block_size: int = 1024
    vocab_size: int = 50257  # of GPT-2's tokenizer; data in letters bring their own
    max_steps: int = 19073  # of 524,288 tokens each, so 10 billion in all
    batch_tokens: int = 524288
    micro_batch_size: int = 16
    learning_rate: float = 6e-4
    min_learning_rate: float = 6e-5
    warmup_steps: int = 715
    weight_decay: float = 0.1
    grad_clip: float = 1.0  # 0 doesn't clip
    seed: int = 1337
    eval_every: int = 1000  # steps between evaluations, each of which saves the run
    eval_tokens: int = 10485760
    bf16: bool = torch.cuda.is_available()
    compile: bool = torch.cuda.is_available()

    @property
    def padded_vocab_size(self) -> int:  # a multiple of 64 is faster on a GPU
        return -(-self.vocab_size // 64) * 64
'''


@dataclass(frozen=True)
class Recipe:
    """A file that is assembled.

    Attributes:
        file: Name of the file.
        notebooks: Numbers of the notebooks that hold parts. A later one can define a part anew.
        docstring: Docstring of the file.
        config: Code of its class `Config`.
        outline: Sections of the file, and the parts in each.
        has_others: Whether parts that the outline doesn't name come last. Otherwise they aren't
            read, since notebooks hold parts that this file doesn't need.
        replaced: Parts that are read and left out of the file. Answers of a learner call them, and
            would bring them along if their names weren't known.
    """

    file: str
    notebooks: tuple[str, ...]
    docstring: str
    config: str
    outline: Mapping[str, tuple[str, ...]]
    has_others: bool = True
    replaced: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Name of the file as a module."""
        return self.file.removesuffix(".py")

    @property
    def header(self) -> str:
        """The file above its parts."""
        return f"{self.docstring.strip()}\n{IMPORTS}\n\n{self.config.strip()}\n"

    def notebooks_until(self, last: str) -> tuple[str, ...]:
        """Return the numbers of the notebooks up to `last`, or of all if it is "".

        Raises:
            UserError: If the file has no part in this notebook.
        """
        if last and last not in self.notebooks:
            known = ", ".join(self.notebooks)
            raise UserError(f"until is {last!r}; for {self.file}, one of {known} expected")
        return self.notebooks[: self.notebooks.index(last or self.notebooks[-1]) + 1]

    def reads(self, part: str) -> bool:
        """Return whether a part of this name is read."""
        named = any(part in names for names in self.outline.values())
        return self.has_others or named or part in self.replaced


def with_lines(config: str, **lines: str) -> str:
    """Return the code of `Config` with other lines for some settings, or without those of ""."""
    for name, line in lines.items():
        config = re.sub(rf"(?m)^    {name}: .*\n", line and f"    {line}\n", config)
    return config


GPT2 = Recipe(
    "train_gpt2.py",
    ("07", "08", "09", "10", "11"),
    docstring='''
"""Train GPT-2 in one file, on one device or on many.

    python train_gpt2.py --data fineweb
    torchrun --standalone --nproc-per-node=8 train_gpt2.py --data fineweb --micro-batch-size=64

The defaults are GPT-2 124M's recipe. The same command resumes a run that was interrupted.
"""
''',
    config=CONFIG,
    outline={
        "Model": (
            "embed",
            "attention",
            "causal_self_attention",
            "mlp",
            "block",
            "init_weights",
            "gpt",
            "is_linear",
            "published_weights",
            "load_weights",
            "nucleus",
            "generate",
        ),
        "Data": ("tokenizer", "tokens", "windows", "processes", "micro_batches", "ahead"),
        "Optimizer": ("learning_rate", "parameter_groups", "make_optimizer", "update"),
        "Evaluation": ("evaluate", "ending_losses", "hellaswag"),
        "Loop": ("backward", "train", "fast", "save", "resume", "report", "main"),
    },
)


TODAY = Recipe(
    "train_gpt2_today.py",
    ("07", "08", "model_of_today", "09", "10", "11", "recipe_of_today"),
    docstring='''
"""Train a GPT of GPT-2's size by a recipe of today, on one device or on many.

    python train_gpt2_today.py --data fineweb
    torchrun --standalone --nproc-per-node=8 train_gpt2_today.py --data fineweb

The same command resumes a run that was interrupted. Data, evaluation and loop are train_gpt2.py's.
"""
''',
    config=with_lines(
        CONFIG,
        init_from='init_from: str = ""  # model.safetensors of an earlier run of this file',
        n_head="n_head: int = 6",
        max_steps="max_steps: int = 3250  # of 524,288 tokens each, so 1.7 billion in all",
        learning_rate="""learning_rate: float = 0.025  # of the blocks' matrices, which Muon updates
    wte_scale: float = 12.0  # rate of the token embedding, as a multiple of this
    head_scale: float = 0.16  # rate of the head
    decay_share: float = 0.7  # share of the steps in which the rate falls to zero""",
        min_learning_rate="",
        warmup_steps="",
        weight_decay="weight_decay: float = 0.05  # of the blocks' matrices",
        eval_every="eval_every: int = 250  # steps between evaluations, which save the run",
    ),
    outline={
        "Model": (
            "norm",
            "rotate",
            "attention",
            "attention_of_today",
            "block_of_today",
            "init_of_today",
            "gpt_of_today",
            "weights_of_today",
            "nucleus",
            "generate",
        ),
        "Data": ("tokenizer", "tokens", "windows", "processes", "micro_batches", "ahead"),
        "Optimizer": ("orthogonalized", "muon_updates", "groups_of_today", "muon", "rate_of_today"),
        "Evaluation": ("evaluate", "ending_losses", "hellaswag"),
        "Loop": ("backward", "train", "fast", "save_of_today", "resume", "report", "main"),
    },
    has_others=False,
    replaced=(
        "embed",
        "causal_self_attention",
        "mlp",
        "block",
        "init_weights",
        "gpt",
        "is_linear",
        "published_weights",
        "load_weights",
        "learning_rate",
        "parameter_groups",
        "make_optimizer",
        "update",
        "save",
    ),
)

RECIPES = {"gpt2": GPT2, "today": TODAY}
