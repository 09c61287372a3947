"""Records of what an answer did: plain numbers, text and tensors, which can be sent as JSON.

A record comes from a process that an answer can change, so reading one executes nothing and
believes nothing but its values.
"""

import base64
import math
from collections.abc import Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

Record = dict[str, Any]
"""What was observed in one case: facts by name, the most important one first."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def plain(value: Any) -> Any:
    """Return a value as numbers, text, lists, dicts and tensors on the CPU.

    Tuples become lists. What has no such form becomes the name of its type.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone() if value.is_meta else value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biufc" else value.tolist()
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real | Decimal):
        return float(value)
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return f"<{type(value).__name__}>"


def encode(value: Any) -> Any:
    """Return a plain value in the types of JSON."""
    if isinstance(value, Tensor):
        data = b"" if value.is_meta else value.contiguous().flatten().view(torch.uint8).numpy()
        return {
            "tensor": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "device": value.device.type,
            "data": base64.b64encode(bytes(data)).decode(),
        }
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": {key: encode(item) for key, item in value.items()}}
    return value


def decode(value: Any) -> Any:
    """Return the plain value of what `encode` returned.

    Raises:
        ValueError: If `encode` can't have returned it.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        match value:
            case {"dict": dict(items)}:
                return {str(key): decode(item) for key, item in items.items()}
            case {"float": "nan" | "inf" | "-inf" as number}:
                return float(number)
            case {"tensor": str(dtype), "shape": list(shape), "device": device, "data": str(data)}:
                return decode_tensor(dtype, shape, device, data)
    raise ValueError("this is not a record")


def decode_tensor(dtype: str, shape: list[Any], device: Any, data: str) -> Tensor:
    """Return a tensor from its dtype, shape and bytes in base64.

    Raises:
        ValueError: If they don't fit each other.
    """
    sizes_are_right = all(type(size) is int and 0 <= size < 2**31 for size in shape)
    if dtype not in DTYPES or not sizes_are_right or device not in ("cpu", "meta"):
        raise ValueError("this is not a record of a tensor")
    if device == "meta":
        return torch.empty(shape, dtype=DTYPES[dtype], device="meta")
    content = bytearray(base64.b64decode(data, validate=True))
    if len(content) != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError("this record of a tensor has another size than its shape")
    if not content:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return torch.frombuffer(content, dtype=torch.uint8).view(DTYPES[dtype]).reshape(shape)
