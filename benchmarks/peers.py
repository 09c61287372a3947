"""The models that others use, with our weights in them."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from torch import nn

from cs336_lib import hugging_face
from cs336_lib.config import UserError
from cs336_lib.model import GPT


def transformers_model(model: GPT) -> nn.Module:
    """transformers' GPT2LMHeadModel on the device and in the dtype of ours."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import transformers

    config = model.config
    shape = {theirs: getattr(config, ours) for ours, theirs in hugging_face.SHAPE.items()}
    dropouts = dict.fromkeys(hugging_face.DROPOUTS, config.dropout)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **dropouts))
    theirs.load_state_dict(hugging_face.hugging_face_tensors(model), strict=False)
    theirs.tie_weights()
    return theirs.to(model.device, model.lm_head.weight.dtype)


def nanogpt_file(checkout: Path) -> Path:
    """Where nanoGPT's model is written.

    Raises:
        UserError: this is no checkout of karpathy/nanoGPT.
    """
    path = checkout / "model.py"
    if not path.is_file():
        raise UserError(f"{path}: not found; give a checkout of karpathy/nanoGPT")
    return path


def nanogpt_model(checkout: Path, model: GPT) -> nn.Module:
    """nanoGPT's GPT, from a checkout of karpathy/nanoGPT, on the device and in the dtype of ours.

    Raises:
        UserError: it is no such checkout.
    """
    module = load_module("nanogpt_model", nanogpt_file(checkout))
    config = model.config
    shape = {name: getattr(config, name) for name in hugging_face.SHAPE}
    theirs = module.GPT(module.GPTConfig(**shape, dropout=config.dropout, bias=config.bias))
    tied = (hugging_face.HEAD, hugging_face.EMBEDDING)  # nanoGPT pads neither
    theirs.load_state_dict(
        {
            name: value[: config.vocab_size] if name in tied else value
            for name, value in model.state_dict().items()
        },
        strict=False,
    )
    return theirs.to(model.device, model.lm_head.weight.dtype)


def load_module(name: str, path: Path) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
