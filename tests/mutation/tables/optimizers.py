"""Wrong ideas for the exercises of 05_adagrad, and mutants that are right."""

SOLVED_LOSS = "return (logits.logsumexp(dim=-1) - chosen).mean()"
SOLVED_M = "m = beta1 * m + (1 - beta1) * grad"
SOLVED_V = "v = beta2 * v + (1 - beta2) * grad**2"
SOLVED_HATS = "m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)"
SOLVED_ADAM = "return w - lr * m_hat / (v_hat.sqrt() + eps), m, v"
SOLVED_ROUND = "x = 1.5 * x - 0.5 * x @ x.T @ x"
DIVIDED = "x = matrix / matrix.norm()"

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "unit_output": {
        "width of the notebook": [("math.sqrt(d_in)", "math.sqrt(768)")],
        "width of the first call": [("math.sqrt(d_in)", "32")],
        "root rounded down": [("math.sqrt(d_in)", "math.isqrt(d_in)")],
        "GPT-2's std": [("/ math.sqrt(d_in)", "* 0.02")],
        "number of outputs": [("math.sqrt(d_in)", "math.sqrt(d_out)")],
        "Xavier": [("/ math.sqrt(d_in)", "* math.sqrt(2 / (d_in + d_out))")],
        "He": [("/ math.sqrt(d_in)", "* math.sqrt(2 / d_in)")],
        "uniform between -1 and 1": [
            ("torch.randn(", "(2 * torch.rand("),
            ("generator) /", "generator) - 1) /"),
        ],
        "positive weights": [
            ("torch.randn(", "math.sqrt(3) * torch.rand("),
        ],
        "shifted weights of the right size": [
            ("torch.randn(", "math.sqrt(0.5) * (1 + torch.randn("),
            ("generator) /", "generator)) /"),
        ],
        "one column for all": [
            ("(d_in, d_out,", "(d_in, 1,"),
            ("math.sqrt(d_in)", "math.sqrt(d_in) * torch.ones(d_out)"),
        ],
        "norm of the whole matrix": """
def init(d_in, d_out, generator):
    w = torch.randn(d_in, d_out, generator=generator)
    return w / w.norm()
""",
        "generator started again": [
            ("return torch", "generator.manual_seed(generator.initial_seed())\n    return torch")
        ],
        "global generator with its seed": [
            ("return torch", "torch.manual_seed(generator.initial_seed())\n    return torch"),
            (", generator=generator", ""),
        ],
        "clipped weights": [("generator=generator)", "generator=generator).clamp(-1, 1)")],
        "std of the drawn numbers": """
def init(d_in, d_out, generator):
    w = torch.randn(d_in, d_out, generator=generator)
    return w / w.std() / math.sqrt(d_in)
""",
        "absolute bounds": """
def init(d_in, d_out, generator):
    w = torch.empty(d_in, d_out)
    return torch.nn.init.trunc_normal_(w, std=d_in**-0.5, generator=generator)
""",
        "longer side": [("math.sqrt(d_in)", "math.sqrt(max(d_in, d_out))")],
        "shorter side": [("math.sqrt(d_in)", "math.sqrt(min(d_in, d_out))")],
        "both sides": [("math.sqrt(d_in)", "(d_in * d_out) ** 0.25")],
        "float64": [("generator=generator", "generator=generator, dtype=torch.float64")],
    },
    "cross_entropy": {
        "one maximum for all": [
            (
                SOLVED_LOSS,
                "top = logits.max()\n    lse = (logits - top).exp().sum(-1).log() + top\n"
                "    return (lse - chosen).mean()",
            )
        ],
        "eps in the log": [
            (
                SOLVED_LOSS,
                "return -(logits.softmax(-1).gather(-1, targets[..., None]) + 1e-9).log().mean()",
            )
        ],
        "infinite losses replaced": [
            (
                SOLVED_LOSS,
                "chance = logits.softmax(-1).gather(-1, targets[..., None])\n"
                "    return -chance.log().nan_to_num(neginf=-1000).mean()",
            )
        ],
        "targets contiguous": """
def loss(logits, targets):
    rows, ids = logits.reshape(-1, logits.size(-1)), targets.view(-1)
    return (rows.logsumexp(1) - rows[torch.arange(len(ids)), ids]).mean()
""",
        "largest absolute value": [
            (
                SOLVED_LOSS,
                "top = logits.abs().amax(-1)\n"
                "    lse = (logits - top[..., None]).exp().sum(-1).log() + top\n"
                "    return (lse - chosen).mean()",
            )
        ],
        "clamped at 1000": [("chosen =", "logits = logits.clamp(-1000, 1000)\n    chosen =")],
        "perplexity": [(SOLVED_LOSS, f"{SOLVED_LOSS}.exp()")],
        "clamped logits": [
            (
                SOLVED_LOSS,
                "return (logits.clamp(-80, 80).logsumexp(-1) - chosen.clamp(-80, 80)).mean()",
            )
        ],
        "clamped from above": [
            (SOLVED_LOSS, "return (logits.logsumexp(-1) - chosen).clamp(max=100).mean()")
        ],
        "softmax over the positions": [
            ("logsumexp(dim=-1)", "logsumexp(dim=1, keepdim=True).gather(-1, targets[..., None])"),
            ("- chosen)", "- chosen[..., None])"),
        ],
        "first row only": [("- chosen)", "- chosen)[0]")],
        "last position only": [("- chosen)", "- chosen)[:, -1]")],
        "targets shifted": [
            (
                SOLVED_LOSS,
                "before, after = logits[:, :-1], targets[:, 1:, None]\n"
                "    chosen = before.gather(-1, after).squeeze(-1)\n"
                "    return (before.logsumexp(dim=-1) - chosen).mean()",
            )
        ],
        "0 is padding": [("- chosen)", "- chosen)[targets != 0]")],
        "largest logit only": [("logits.logsumexp(dim=-1)", "logits.amax(-1)")],
        "classes counted from the targets": """
def loss(logits, targets):
    one_hot = torch.nn.functional.one_hot(targets)
    return -(one_hot * logits.log_softmax(-1)).sum(-1).mean()
""",
        "sizes of the first call": [
            (SOLVED_LOSS, "return (logits.logsumexp(dim=-1) - chosen).sum() / 10")
        ],
        "a Python number": [(SOLVED_LOSS, f"{SOLVED_LOSS}.item()")],
        "denominator detached": [("logits.logsumexp", "logits.detach().logsumexp")],
        "target's logit detached": [("chosen = logits.", "chosen = logits.detach().")],
        "bits": [(SOLVED_LOSS, "return (logits.logsumexp(dim=-1) - chosen).mean() / math.log(2)")],
        "logits shifted in place": [
            ("chosen =", "logits -= logits.amax(-1, keepdim=True)\n    chosen =")
        ],
        "library": """
def loss(logits, targets):
    return torch.nn.CrossEntropyLoss()(logits.transpose(1, 2), targets)
""",
        "nll_loss": """
def loss(logits, targets):
    return torch.nn.NLLLoss()(logits.log_softmax(-1).transpose(1, 2), targets)
""",
    },
    "adagrad_by_hand": {
        "swapped": "answer = (0.7125, 21025)",
        "mean of squares": [("8**2 + 15**2 + 144**2", "21025 / 3")],
        "square of the sum": [("8**2 + 15**2 + 144**2", "167**2")],
        "root of the state": [("8**2 + 15**2 + 144**2", "145")],
        "state before the last step": [("8**2 + 15**2 + 144**2", "289")],
        "last sum for every step": [("8 / 8 + 15 / 17", "8 / 145 + 15 / 145")],
        "without the root": [("8 / 8 + 15 / 17 + 144 / 145", "8 / 64 + 15 / 289 + 144 / 21025")],
        "own gradient only": [("15 / 17 + 144 / 145", "15 / 15 + 144 / 144")],
        "sum of the gradients": [("15 / 17 + 144 / 145", "15 / 23 + 144 / 167")],
        "SGD": [("8 / 8 + 15 / 17 + 144 / 145", "8 + 15 + 144")],
        "two steps": [(" + 144 / 145", "")],
        "without the learning rate": [("0.1 *", "")],
        "distance": [("1 - 0.1", "0.1")],
        "uphill": [("1 - 0.1", "1 + 0.1")],
        "two decimals": "answer = (21025, 0.71)",
        "cut off after four decimals": "answer = (21025, 0.7124)",
        "state off by one": "answer = (21026, 0.7125)",
    },
    "adam_step": {
        "corrections swapped": [
            (SOLVED_HATS, "m_hat, v_hat = m / (1 - beta2**t), v / (1 - beta1**t)")
        ],
        "no correction": [(SOLVED_HATS, "m_hat, v_hat = m, v")],
        "corrected state": [
            (SOLVED_HATS, "m, v = m / (1 - beta1**t), v / (1 - beta2**t)\n    m_hat, v_hat = m, v")
        ],
        "steps from 0": [("beta1**t", "beta1**(t - 1)"), ("beta2**t", "beta2**(t - 1)")],
        "one step too many": [("beta1**t", "beta1**(t + 1)"), ("beta2**t", "beta2**(t + 1)")],
        "t times beta": [("beta1**t", "beta1 * t"), ("beta2**t", "beta2 * t")],
        "first step's correction": [("beta1**t", "beta1"), ("beta2**t", "beta2")],
        "step number of the first call": [("beta1**t", "beta1**3"), ("beta2**t", "beta2**3")],
        "correction at the first step only": [
            (SOLVED_HATS, f"{SOLVED_HATS}\n    if t > 3:\n        m_hat, v_hat = m, v")
        ],
        "eps inside the root": [("v_hat.sqrt() + eps", "(v_hat + eps).sqrt()")],
        "eps before the correction": [
            ("v_hat.sqrt() + eps", "(v.sqrt() + eps) / (1 - beta2**t) ** 0.5")
        ],
        "no eps": [(" + eps", "")],
        "usual eps": [(" + eps", " + 1e-8")],
        "eps as a floor": [("v_hat.sqrt() + eps", "v_hat.sqrt().clamp(min=eps)")],
        "no root": [("v_hat.sqrt()", "v_hat")],
        "usual betas": [
            (SOLVED_M, "beta1, beta2 = 0.9, 0.99\n    m = beta1 * m + (1 - beta1) * grad")
        ],
        "betas swapped": [(SOLVED_M, f"beta1, beta2 = beta2, beta1\n    {SOLVED_M}")],
        "usual rate": [("lr *", "0.1 *")],
        "old m": [
            (SOLVED_M, "new_m = beta1 * m + (1 - beta1) * grad"),
            ("eps), m, v", "eps), new_m, v"),
        ],
        "old v": [
            (SOLVED_V, "new_v = beta2 * v + (1 - beta2) * grad**2"),
            ("eps), m, v", "eps), m, new_v"),
        ],
        "RMSProp": [("lr * m_hat", "lr * grad")],
        "square of m": [("grad**2", "m**2")],
        "second moment by norm": [("grad**2", "grad.norm() ** 2")],
        "AMSGrad": [("    m_hat", "    old, v = v, v\n    v = v.maximum(old / beta2)\n    m_hat")],
        "no step where the gradient is 0": [
            ("return w - lr * m_hat", "return w - lr * (grad != 0) * m_hat")
        ],
        "no new m where the gradient is 0": [
            (SOLVED_M, f"old = m\n    {SOLVED_M}\n    m = torch.where(grad == 0, old, m)")
        ],
        "no new v where the gradient is 0": [
            (SOLVED_V, f"old = v\n    {SOLVED_V}\n    v = torch.where(grad == 0, old, v)")
        ],
        "weight decay": [("return w -", "return w * (1 - 0.1 * lr) -")],
        "clipped gradient": [(SOLVED_M, f"grad = grad.clamp(-1, 1)\n    {SOLVED_M}")],
        "in place": """
def adam_step(w, grad, m, v, t, lr, beta1, beta2, eps):
    m.mul_(beta1).add_(grad, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    return w - lr * m_hat / (v_hat.sqrt() + eps), m, v
""",
        "weights in place": """
def adam_step(w, grad, m, v, t, lr, beta1, beta2, eps):
    m = beta1 * m + (1 - beta1) * grad
    v = beta2 * v + (1 - beta2) * grad**2
    w -= lr * m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps)
    return w, m, v
""",
        "change of the weights": [("return w - lr", "return -lr")],
        "float32": [("return w -", "w, m, v = w.float(), m.float(), v.float()\n    return w -")],
        "uphill": [("w - lr", "w + lr")],
    },
    "newton_schulz": {
        "cubed entries": [(SOLVED_ROUND, "x = 1.5 * x - 0.5 * x**3")],
        "rounds of the task": [("range(steps)", "range(25)")],
        "not more than five rounds": [("range(steps)", "range(min(steps, 5))")],
        "one round too few": [("range(steps)", "range(1, steps)")],
        "one round at least": [("range(steps)", "range(max(1, steps))")],
        "no division without rounds": [(DIVIDED, f"{DIVIDED} if steps else matrix")],
        "norm in every round": [(SOLVED_ROUND, f"{SOLVED_ROUND}\n        x = x / x.norm()")],
        "norm after the rounds": [(DIVIDED, "x = matrix"), ("return x", "return x / x.norm()")],
        "norm multiplied back": [("return x", "return x * matrix.norm()")],
        "largest singular value": [("matrix.norm()", "torch.linalg.matrix_norm(matrix, 2)")],
        "sum of the singular values": [
            ("matrix.norm()", "torch.linalg.matrix_norm(matrix, 'nuc')")
        ],
        "norm of each row": [("matrix.norm()", "matrix.norm(dim=-1, keepdim=True)")],
        "largest entry": [("matrix.norm()", "matrix.abs().max()")],
        "square root of the size": [("matrix.norm()", "matrix.numel() ** 0.5")],
        "SVD": """
def classical(matrix, steps):
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    return u @ v
""",
        "singular values without vectors": """
def classical(matrix, steps):
    s = torch.linalg.svdvals(matrix / matrix.norm())
    for _ in range(steps):
        s = 1.5 * s - 0.5 * s**3
    return torch.diag(s)
""",
        "Muon's polynomial": [
            (
                SOLVED_ROUND,
                "g = x @ x.T\n        x = 3.4445 * x + (-4.775 * g + 2.0315 * g @ g) @ x",
            )
        ],
        "turned for good": [(DIVIDED, f"{DIVIDED}\n    x = x.T if x.size(0) > x.size(1) else x")],
        "in place": [(DIVIDED, "x = matrix.div_(matrix.norm())")],
        "float32": [(DIVIDED, "x = matrix.float() / matrix.norm().float()")],
        "cube of the first matrix": [
            ("x @ x.T @ x", "matrix @ matrix.T @ matrix / matrix.norm() ** 3")
        ],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "unit_output": {"no gradient": "Weights are drawn without a gradient."},
    "cross_entropy": {
        "other dtype": "The task asks for a number, which may be computed in float64.",
    },
    "adagrad_by_hand": {
        "integer division: answer = (8 ** 2 + 15 ** 2 + 144 ** 2, "
        "1 - 0.1 * (8 / 8 + 15 / 17 + 144 / 145))": "8 // 8 equals 8 / 8.",
    },
    "adam_step": {"no gradient": "An optimizer's step isn't differentiated."},
    "newton_schulz": {"no gradient": "An optimizer's step isn't differentiated."},
}
