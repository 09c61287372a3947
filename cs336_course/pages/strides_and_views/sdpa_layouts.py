"""Compare the layouts in which the kernels of scaled_dot_product_attention return their result."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Strides = tuple[int, ...]


def cpu_strides(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend) -> Strides:
    """Return the strides of the result of a kernel that runs on this CPU."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).stride()


def result_strides(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Strides]:
    """Return the strides of the result of each kernel.

    The CPU's kernels run. For CUDA's kernels PyTorch has functions that compute only the layout,
    for tensors on the meta device, so no GPU is needed.
    """
    found = {
        "CPU, flash": cpu_strides(q, k, v, SDPBackend.FLASH_ATTENTION),
        "CPU, math": cpu_strides(q, k, v, SDPBackend.MATH),
    }
    meta = [torch.empty_strided(x.shape, x.stride(), device="meta").half() for x in (q, k, v)]
    aten = torch.ops.aten
    layouts = {
        "CUDA, flash": aten._scaled_dot_product_flash_attention(*meta),
        "CUDA, cuDNN": aten._scaled_dot_product_cudnn_attention(*meta, None, True),
        "CUDA, memory-efficient": aten._scaled_dot_product_efficient_attention(*meta, None, True),
    }
    return found | {name: output[0].stride() for name, output in layouts.items()}


def merges(strides: Strides, n_head: int, seq: int, head_dim: int) -> list[str]:
    """Return which of the two lines that merge heads run on a result with these strides."""
    y = torch.empty_strided((2, n_head, seq, head_dim), strides, device="meta")
    shape = (2, seq, n_head * head_dim)
    works = []
    for name, view in {"transpose, view": y.transpose(1, 2), "view alone": y}.items():
        try:
            view.view(shape)
        except RuntimeError:
            continue
        works.append(name)
    return works
