"""Answers to the exercises of page 11."""

from cs336_course.engine import edits

BACKWARD = """
def backward(model, pieces, count, autocast):
    total = torch.zeros((), device=model.lm_head.weight.device)
    for x, y in pieces:
        with autocast:
            loss = model(x.to(total.device), y.to(total.device)) / count
        loss.backward()
        total += loss.detach()
    for parameter in model.parameters():
        sum_over_processes(parameter.grad)
    return sum_over_processes(total)
"""
RING = f"""
def sum_over_processes(tensor):
    if not dist.is_initialized():
        return tensor
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    sent = tensor.clone()
    for _ in range(world - 1):
        received = torch.empty_like(sent)
        CALLS
        tensor += received
        sent = received
    return tensor
{BACKWARD}"""
STARTED = "calls = [dist.isend(sent, dst=after), dist.irecv(received, src=before)]"
LOOP = """    for parameter in model.parameters():
        sum_over_processes(parameter.grad)  # once a step, not once a micro-batch
"""
RIGHT = {
    "data_parallel": [
        RING.replace("CALLS", f"{STARTED}\n        [call.wait() for call in calls]"),
        RING.replace(
            "CALLS",
            "for call in (dist.send, dist.recv) if rank else (dist.recv, dist.send):\n"
            "            call(sent, after) if call is dist.send else call(received, src=before)",
        ),
        (
            "dist.all_reduce(tensor)",
            "parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]\n"
            "        dist.all_gather(parts, tensor)\n        tensor.copy_(sum(parts))",
        ),
        (
            "dist.all_reduce(tensor)",
            "dist.reduce(tensor, 0, async_op=True).wait()\n        dist.broadcast(tensor, 0)",
        ),
        (
            LOOP,
            "    gradients = [parameter.grad for parameter in model.parameters()]\n"
            "    flat = sum_over_processes(torch.cat([g.flatten() for g in gradients]))\n"
            "    pieces = flat.split([g.numel() for g in gradients])\n"
            "    for gradient, piece in zip(gradients, pieces):\n"
            "        gradient.copy_(piece.view_as(gradient))\n",
        ),
        edits(
            ("+= loss.detach()", "+= sum_over_processes(loss.detach())"),
            ("return sum_over_processes(total)", "return total"),
        ),
    ],
    "ending_losses": [
        # All losses at once, and then the endings
        """
def ending_losses(model, contexts, endings):
    size, device = model.config.block_size + 1, model.lm_head.weight.device
    texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, strict=True)]
    rows = nn.utils.rnn.pad_sequence(texts, batch_first=True).to(device)
    losses = F.cross_entropy(model(rows[:, :-1]).float().mT, rows[:, 1:], reduction="none")
    triples = zip(losses, texts, endings, strict=True)
    return torch.stack([loss[: len(text) - 1][-len(e) :].mean() for loss, text, e in triples])
""",
        # Masks what isn't an ending
        """
def ending_losses(model, contexts, endings):
    size = model.config.block_size + 1
    rows = [torch.tensor((*c, *e))[-size:] for c, e in zip(contexts, endings)]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=3)
    targets = tokens[:, 1:].clone()
    for target, row, ending in zip(targets, rows, endings, strict=True):
        target[: max(len(row) - 1 - len(ending), 0)] = target[len(row) - 1 :] = -100
    tokens, targets = (ids.to(next(model.parameters()).device) for ids in (tokens, targets))
    logits = model(tokens[:, :-1]).float().transpose(1, 2)
    losses = F.cross_entropy(logits, targets, reduction="none").sum(1)
    return losses / (targets >= 0).sum(1)
""",
    ],
}
REFUSED = {
    "data_parallel": [
        ("all_reduce(tensor)", "all_reduce(tensor, async_op=True)"),
        ("if dist.is_initialized():", "if dist.is_initialized() and dist.get_rank() == 0:"),
        ("all_reduce(tensor)", "recv(torch.empty_like(tensor), 1 - dist.get_rank())"),
        ("all_reduce(tensor)", "all_reduce(tensor, op=dist.ReduceOp.MAX)"),
        RING.replace("CALLS", STARTED),
        ("parameter.grad", "parameter.data"),
        ("loss.detach()", "loss"),
        ("x.to(total.device), y.to(total.device)", "x, y"),
        (LOOP, LOOP + "        break\n"),
        (
            "parameter in model.parameters()",
            "parameter in {p.shape: p for p in model.parameters()}.values()",
        ),
    ],
    "ending_losses": [
        ("row[s].float()", "row[s]"),
        ("max(len(t) - 1 - len(e), 0)", "len(t) - 1 - len(e)"),
        """
def ending_losses(model, contexts, endings):
    losses = []
    for context, ending in zip(contexts, endings, strict=True):
        row = torch.tensor([context + ending], device=model.lm_head.weight.device)
        row = row[:, -model.config.block_size - 1 :]
        logits = model(row[:, :-1])[0, -len(ending) :].float()
        losses.append(F.cross_entropy(logits, row[0, -len(ending) :]))
    return torch.stack(losses)
""",
        ("(c + e)", "(c.__iadd__(e))"),
        (".to(device)", ""),
        (".float()", ".bfloat16()"),
        ("return torch.stack", "torch.stack"),
        ("len(t) - 1 - len(e)", "len(t) - 1 - len(endings[0])"),
    ],
}
