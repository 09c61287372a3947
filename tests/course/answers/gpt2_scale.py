"""Answers to the exercises of page 11."""

BUCKET = """        bucket = torch.cat([gradient.flatten() for gradient in self.waiting])
        call = dist.all_reduce(bucket, async_op=True)
        self.travelling.append((call, bucket, self.waiting))
"""
SPLIT = """            sums = bucket.split([gradient.numel() for gradient in gradients])
            for gradient, total in zip(gradients, sums, strict=True):
                gradient.copy_(total.view_as(gradient))
"""
RIGHT = {
    "buckets": [
        ("        for call", "        __import__('time').sleep(0.1)\n        for call"),
        (
            BUCKET,
            """        bucket = torch.nn.utils.parameters_to_vector(self.waiting)
        self.travelling += [(dist.all_reduce(bucket, async_op=True), bucket, self.waiting[:])]
""",
        ),
        (
            SPLIT,
            """            first = 0
            for gradient in gradients:
                gradient[...] = bucket[first : first + gradient.numel()].reshape(gradient.shape)
                first += gradient.numel()
""",
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
    "buckets": [
        ("call.wait()", "pass"),
        (  # copies the bucket before its sum has arrived
            "            call.wait()\n" + SPLIT,
            SPLIT + "            call.wait()\n",
        ),
        ("call = dist.all_reduce(bucket, async_op=True)", "call = dist.all_reduce(bucket)"),
        ("async_op=True)\n", "async_op=True)\n        call.wait()\n"),
        ("async_op=True", "dist.ReduceOp.MAX, async_op=True"),
        (BUCKET, BUCKET.replace("self.waiting]", "self.waiting[-1:]]")),
        (BUCKET, "        if dist.get_rank() == 0:\n" + BUCKET.replace("        ", " " * 12)),
        (SPLIT, SPLIT.replace("bucket.split", "bucket.flip(0).split")),
        ("if self.waiting:", "if len(self.waiting) > 1:"),
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
