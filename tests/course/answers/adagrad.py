"""Other answers to the exercises of the page on AdaGrad."""

import numpy as np
import torch
from torch import nn

from cs336_course.engine import edits


def fused(w, grad, m, v, t, lr, beta1, beta2, eps):
    """Use functions that do several operations at once."""
    m, v = m.lerp(grad, 1 - beta1), torch.addcmul(beta2 * v, grad, grad, value=1 - beta2)
    root = (v / (1 - beta2**t)).sqrt().add_(eps)
    return [torch.addcdiv(w, m, root, value=-lr / (1 - beta1**t)), m, v]


def corrected_rate(w, grad, m, v, t, lr, beta1, beta2, eps):
    """Correct the rate, as in section 2 of Adam's paper, with eps scaled to match."""
    m, v = m + (1 - beta1) * (grad - m), v + (1 - beta2) * (grad.square() - v)
    root = np.sqrt(1 - beta2**t)
    return w - lr * root / (1 - beta1**t) * m / (v.sqrt() + eps * root), m, v


def by_pytorch(w, grad, m, v, t, lr, beta1, beta2, eps):
    """Give PyTorch's Adam the state."""
    p = nn.Parameter(w.clone())
    p.grad = grad.clone()
    optimizer = torch.optim.Adam([p], lr, (beta1, beta2), eps)
    state = {"step": torch.tensor(float(t - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.state[p] = state
    optimizer.step()
    return p.detach(), state["exp_avg"], state["exp_avg_sq"]


M = "m = beta1 * m + (1 - beta1) * grad\n"
V = "v = beta2 * v + (1 - beta2) * grad**2\n"

RIGHT = {
    "shocks": [('"0.9 and 0.5": "cancel"', '"0.9 and 0.5": "Cancel "')],
    "adam_step": [
        fused,
        corrected_rate,
        by_pytorch,
        lambda w, grad, m, v, *settings: fused(w, grad, m, v, *map(torch.tensor, settings)),
    ],
}
REFUSED = {
    "shocks": [('"0.9 and 0.85": "keep"', '"0.9 and 0.85": "cancel"')],
    "adam_step": [
        (M, f"beta1, beta2 = 0.9, 0.99\n    {M}"),
        (M, f"grad = grad.clamp(-1, 1)\n    {M}"),
        ("**t", "**3"),
        ("m_hat, v_hat =", "old, v = v, v\n    v = v.maximum(old / beta2)\n    m_hat, v_hat ="),
        ("return w -", "return w * (1 - 0.1 * lr) -"),
        ("return w -", "w, m, v = w.float(), m.float(), v.float()\n    return w -"),
        ("+ eps", "+ round(eps, 3)"),  # nan where all gradients were 0
        edits((M, f"old = m\n    {M}    m = torch.where(grad == 0, old, m)\n")),
        edits((V, "v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)\n")),
        ("eps), m, v", "eps)"),
    ],
}
