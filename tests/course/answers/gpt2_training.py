"""Answers to the exercises of page 09."""

from cs336_course.engine import edits

RIGHT = {
    "backward": [
        """
def backward(model, pieces, count, autocast):
    losses, device = [], next(model.parameters()).device
    while (piece := next(pieces, None)) is not None:
        with autocast:
            loss = model(targets=piece[1].to(device), idx=piece[0].to(device))
            loss.backward(torch.full_like(loss, 1 / count))
        losses.append(loss.detach())
    return torch.stack(losses).sum() / count
""",
        """
def backward(model, pieces, count, autocast):
    device = model.lm_head.weight.device
    total = torch.zeros(1, device=device)
    for x, y in pieces:
        x, y = x.to(device), y.to(device)
        with autocast:
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), y)
        loss.div(count).backward()
        total += loss.data / count
    return total
""",
    ],
    "train": [
        """
def train(model, optimizer, batches, val_tokens, config, autocast, first_step=0):
    windows = config.batch_tokens // config.block_size
    count, limit = windows // config.micro_batch_size, config.grad_clip
    if limit == 0:
        limit = float("inf")
    step = first_step
    while step < config.max_steps:
        start = time.time()
        loss = float(backward(model, batches(step), count, autocast))
        norm = float(update(model, optimizer, learning_rate(step, config), limit))
        seconds = time.time() - start
        row = dict(step=step, loss=loss, grad_norm=norm, seconds=seconds)
        row["lr"] = optimizer.param_groups[0]["lr"]
        step += 1
        if step == config.max_steps or not step % config.eval_every:
            row["val_loss"] = float(evaluate(model, val_tokens, config, autocast))
        yield row
""",
    ],
}
REFUSED = {
    "backward": [
        """
def backward(model, pieces, count, autocast):
    xs, ys = zip(*pieces)
    device = model.lm_head.weight.device
    with autocast:
        loss = model(torch.cat(xs).to(device), torch.cat(ys).to(device)) * len(xs) / count
    loss.backward()
    return loss.detach()
""",
        edits(
            ("    for x", "    late = None\n    for x"),
            (
                "        loss.backward()\n",
                "        if late is not None:\n            late.backward()\n        late = loss\n",
            ),
            ("    return total", "    late.backward()\n    return total"),
        ),
        ("with autocast:", "if not autocast.__enter__():"),
        ("in pieces:", "in [next(pieces)] * count:"),
        ("        total +=", "        x.zero_()\n        total +="),
        ("total += loss.detach()", "total = total + loss"),
        ("x.to(total.device)", "x"),
        ("return total", "return total.cpu()"),
    ],
    "train": [
        ("batches(step)", "batches(step - first_step)"),
        ("yield row", "yield step, row"),
        ("count, autocast)", "count, ExitStack())"),
        ("(step + 1) % config.eval_every", "(step + 1 - first_step) % config.eval_every"),
    ],
}
