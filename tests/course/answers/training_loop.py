"""Other answers to the exercises on the training loop."""

from cs336_course.engine import edits

CLIP = "    norm = nn.utils.clip_grad_norm_(parameters, limit)\n"

UNSCALE = """    for p in parameters:
        p.grad /= scale
"""
CLIP_FIRST = edits((UNSCALE, ""), (CLIP, CLIP.replace("limit", "limit * scale") + UNSCALE))

RIGHT = {
    "verdict": [('"clip at 1": "dies"', '"clip at 1": "Dies "')],
    "finish_step": [
        """
def finish(optimizer, scale, limit):
    gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    norm = torch.stack([g.norm() for g in gradients]).norm() / scale
    good = all(g.isfinite().all() for g in gradients)
    if good:
        for g in gradients:
            g.mul_(min(1.0, limit / (norm.item() + 1e-6)) / scale)
        optimizer.step()
    optimizer.zero_grad()
    return scale if good else 0.5 * scale
""",
        (CLIP, CLIP.replace("limit)", "limit, foreach=False)")),
        CLIP_FIRST,
    ],
}
REFUSED = {
    "verdict": [
        ('"four windows a step": "lives"', '"four windows a step": "safe"'),
        ('"clip at 1": "dies"', '"clip at 1": False'),
        ('"clip at 1": "dies"', '"clip at 1": ...'),
        ('9,000": 3.46', '9,000": ...'),
        ('9,000": 3.46', '9,000": 226_744'),
    ],
    "finish_step": [
        (CLIP, "    norm = torch.stack([p.grad.norm() for p in parameters[:1]]).norm()\n"),
        ("optimizer.step()", "optimizer.state.clear()"),
        "def finish(optimizer, scale, limit):\n    return scale",
    ],
}
