"""Exercises of page 11: gradients in buckets, and the losses of HellaSwag's endings."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from cs336_course.engine import Case, Exercise, edits, normal
from cs336_course.engine.modules import fill
from cs336_course.engine.ranks import WHYS, StuckError, noting_calls, on_processes
from cs336_course.engine.records import Record, plain
from cs336_course.engine.training import Autocast, Passes, elsewhere, watched_forward
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

NOTEBOOK = "11_gpt2_scale"
ELSEWHERE, HALF = "a model on another device", "a model in bf16"


# buckets


def bucket_cases() -> Iterator[Case]:
    """Yield numbers of processes, the shapes of gradients in their order, and a bucket's size."""
    yield Case(world=2, shapes=[(2,), (1,), (3,)], size=3)
    yield Case("a last bucket that isn't full", world=3, shapes=[(2, 2), (3,), (2,)], size=5)
    yield Case("a gradient larger than a bucket", world=2, shapes=[(), (4, 5), (2,)], size=6)
    yield Case("one bucket for all", world=2, shapes=[(2, 3), (4,)], size=100)
    yield Case("no gradient and no process group", world=1, shapes=[], size=3)


def see_buckets(answer: Any, case: Case) -> Record:
    """Observe which calls leave after each gradient, and the gradients in the end."""
    world, shapes, size = case.inputs.values()
    if not shapes:
        answer(size).arrive()
        return {"does nothing": True}
    calls: list[list[int]] = [[] for _ in range(world)]  # the numbers that each rank sends
    waits: list[list[mock.Mock]] = [[] for _ in range(world)]

    def summed(rank: int) -> tuple[list[list[int]], bool, list[Tensor]]:
        parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
        buckets, sent = answer(size), []
        for number, (parameter, shape) in enumerate(zip(parameters, shapes, strict=True)):
            parameter.grad = normal(*shape, seed=10 * rank + number)
            buckets.add(parameter)
            sent.append(calls[rank][:])
        waited = any(wait.called for wait in waits[rank])  # another rank may be further on
        buckets.arrive()
        return [*sent, calls[rank]], waited, [plain(parameter.grad) for parameter in parameters]

    try:
        with noting_calls() as works:
            start = dist.all_reduce

            def noted(tensor: Tensor, *args: Any, **named: Any) -> Any:
                calls[dist.get_rank()].append(tensor.numel())
                total = tensor.clone()  # the sum isn't there before somebody has waited for it
                work = start(total, *args, **named)
                if work is None:
                    tensor.copy_(total)
                else:
                    wait = work.wait
                    work.wait = mock.Mock(side_effect=lambda *_: (wait(), tensor.copy_(total)))
                    waits[dist.get_rank()].append(work.wait)
                return work

            with mock.patch.object(dist, "all_reduce", noted):
                sent, waited, gradients = zip(*on_processes(world, summed), strict=True)
    except StuckError as stuck:
        return {why: why == stuck.why for why in WHYS}
    return {
        **dict.fromkeys(WHYS, False),
        "in time": len(works) == sum(map(len, calls)) and not any(waited),
        "waits": all(work.wait.called for work in works),
        "the numbers in each call": list(sent),
        "each process's gradients": list(gradients),
    }


buckets = Exercise(
    NOTEBOOK,
    "buckets",
    bucket_cases,
    observe=see_buckets,
    answers=("Buckets",),
    is_part=True,
    given={"dist": dist},
    smaller="The gradients [1, 2] and [3] wait in process 0, and [10, 20] and [30] in process 1. "
    "Which tensor does each of them pass to all_reduce, and what is in it afterwards?",
    says={
        "each other": "your processes wait for each other forever. Each of them must call "
        "all_reduce equally often, whatever its rank is.",
        "message": "your processes wait forever for a message that no process sends.",
        "ends Python": "one of your processes ends Python.",
        "slow": "your processes aren't done after a minute.",
        "in time": "send must return before the bucket has arrived, or backward has to wait. Call "
        "all_reduce with async_op=True, and wait in `arrive`.",
        "waits": "a call with async_op=True returns before it is done; call `wait()` on what it "
        "returns before you use the bucket.",
        "the numbers in each call": "a call doesn't hold the gradients that were waiting. Send all "
        "of them as one tensor, once they fill a bucket, and the rest in `arrive`.",
        "each process's gradients": "after `arrive`, the gradients aren't the sums over the "
        "processes.",
    },
    errors={
        "it can be that nothing waits when `arrive` is called. Then it has nothing to send.": (
            "non-empty list",
            ("if self.waiting:", "if True:"),
        ),
        "all_reduce returns something to wait for only with async_op=True.": (
            "'NoneType' object has no attribute 'wait'",
            ("async_op=True", "async_op=False"),
        ),
    },
    wrong={
        "the last gradients don't fill a bucket, so they never leave. Send them in `arrive`.": (
            "        if self.waiting:\n            self.send()\n",
            "",
        ),
        "each gradient travels in a call of its own. Join those that wait, with torch.cat.": edits(
            (
                "        bucket = torch.cat([gradient.flatten() for gradient in self.waiting])\n"
                "        call = dist.all_reduce(bucket, async_op=True)\n"
                "        self.travelling.append((call, bucket, self.waiting))\n",
                "        for gradient in self.waiting:\n"
                "            call = dist.all_reduce(gradient, async_op=True)\n"
                "            self.travelling.append((call, gradient.flatten(), [gradient]))\n",
            ),
            (
                "            for gradient, total in zip(gradients, sums, strict=True):\n"
                "                gradient.copy_(total.view_as(gradient))\n",
                "",
            ),
        ),
        "gradients that have left still wait, so that they leave again. Begin a new list.": (
            "        self.waiting = []\n",
            "",
        ),
        "the list that you empty is the one that you noted with the bucket, so that its gradients "
        "are forgotten. Begin a new list instead.": edits(
            ("        self.waiting = []\n", "        self.waiting.clear()\n"),
            ("sums, strict=True", "sums"),
        ),
        "the sums stay in the bucket. Copy its pieces back into the gradients, in place.": [
            ("                gradient.copy_(total.view_as(gradient))\n", "                pass\n"),
            ("gradient.copy_(total.view_as(gradient))", "gradient = total.view_as(gradient)"),
        ],
        "you divide by the number of processes. The loss is already divided by the whole batch's "
        "count, so the gradients must be added up.": (
            "total.view_as(gradient)",
            "total.view_as(gradient) / dist.get_world_size()",
        ),
    },
)


# ending_losses


@torch.no_grad()
def small_gpt(block_size: int) -> GPT:
    """Return a model whose choices depend on the whole context.

    Each odd token is nearly the same as the one before it.
    """
    model = GPT(GPTConfig(block_size, vocab_size=36, n_layer=1, n_head=2, n_embd=24)).eval()
    fill(model, std=1.0)
    ids = model.lm_head.weight
    ids[1::2] = ids[::2].lerp(ids[1::2], 1e-3)
    return model


Text = tuple[list[int], list[int]]  # a context and an ending


def texts(count: int, context: tuple[int, int], ending: tuple[int, int]) -> list[Text]:
    """Draw contexts and endings with lengths in these ranges."""
    drawn = np.random.default_rng(count)

    def tokens(low: int, high: int) -> list[int]:
        return drawn.integers(36, size=drawn.integers(low, high + 1)).tolist()

    return [(tokens(*context), tokens(*ending)) for _ in range(count)]


def text_cases() -> Iterator[Case]:
    """Yield texts for models of two sizes."""
    yield Case(block_size=13, texts=[([5, 7], [2, 9]), ([5, 7], [4])])
    yield Case("one text", block_size=13, texts=[([5, 7, 1], [2, 9])])
    yield Case("texts of many lengths", block_size=13, texts=texts(30, (1, 7), (1, 6)))
    yield Case(
        "texts of more than block_size + 1 tokens", block_size=13, texts=texts(20, (8, 25), (2, 6))
    )
    yield Case("another model, with block_size 8", block_size=8, texts=texts(15, (1, 12), (1, 4)))
    yield Case("token 0 in the text", block_size=13, texts=[([0, 7], [0, 0, 3]), ([1], [0])])
    yield Case(
        "an ending longer than block_size", block_size=4, texts=[([5, 7], [2, 9, 1, 3, 8, 6])]
    )
    yield Case(HALF, block_size=13, texts=[([1, 2], [3]), ([1, 2], [4, 5])])
    yield Case(ELSEWHERE, block_size=13, texts=[([1, 2], [3]), ([1, 2], [4, 5])])


def see_losses(answer: Any, case: Case) -> Record:
    """Observe the losses, the forward passes, and whether the lists are as before."""
    model = small_gpt(case.inputs["block_size"])
    contexts, endings = (
        [list(ids) for ids in side] for side in zip(*case.inputs["texts"], strict=True)
    )
    if case.what == ELSEWHERE:
        model.to("meta")
        return {"elsewhere": elsewhere(model, lambda: answer(model, contexts, endings))}
    if case.what == HALF:  # whose numbers depend on the padding
        with torch.no_grad():
            result = answer(model.to(torch.bfloat16), contexts, endings)
        return {"dtype": str(getattr(result, "dtype", ""))}
    passes = Passes(model, Autocast())
    with torch.no_grad(), watched_forward(model, passes.look):
        result = answer(model, contexts, endings)
    given = list(zip(contexts, endings, strict=True))
    is_tensor = isinstance(result, Tensor)
    return {
        "changed": given != case.inputs["texts"],
        "a tensor": is_tensor,
        "passes": len(passes.inputs),
        "dtype": str(result.dtype) if is_tensor else "",
        "losses": plain(result),
    }


ending_losses = Exercise(
    NOTEBOOK,
    "ending_losses",
    text_cases,
    observe=see_losses,
    is_part=True,
    given={"F": F, "nn": nn},
    smaller="The texts are [5, 7] with the ending [2, 9], and [5, 7] with [4]. Which ids go into "
    "the model, and which of its logits predict 2, 9 and 4?",
    says={
        "changed": "you change the lists; build a new one: a + b.",
        "a tensor": "return a tensor with one loss per text.",
        "passes": "your function calls the model more than once; pad the texts, and call it with "
        "all.",
        "dtype": "the losses aren't fp32; use `.float()` on the logits.",
        "losses": "a loss isn't the mean loss of its ending's tokens.",
        "elsewhere": "the ids stay on the CPU when the model is on a GPU: "
        "device=model.lm_head.weight.device.",
    },
    wrong={
        "you add up the losses, so a long ending seems unlikely. Take their means.": (
            "targets[s])",
            "targets[s], reduction='sum')",
        ),
        "the context's losses count too. Take the losses of the ending's tokens only.": (
            "slice(max(len(t) - 1 - len(e), 0)",
            "slice(0",
        ),
        "the losses of the padding count, too. Take only the positions that predict the ending.": [
            ("slice(max(len(t) - 1 - len(e), 0), len(t) - 1)", span)
            for span in (
                "slice(None)",
                "slice(max(len(t) - 1 - len(e), 0), None)",
                "slice(-len(e), None)",
            )
        ],
        "you compare each token with the logits at its own place. The logits at position i predict "
        "token i + 1.": ("rows[:, 1:]", "rows[:, :-1]"),
        "you begin one token too late, and end one too late; the context's last logits predict the "
        "ending's first token.": (
            "slice(max(len(t) - 1 - len(e), 0), len(t) - 1)",
            "slice(max(len(t) - len(e), 1), len(t))",
        ),
        "your endings come without all of their context, but the question is what follows it.": [
            ("(c + e)", "(e[:1] + e)"),
            ("(c + e)", "(c[-1:] + e)"),
        ],
        "the loss of the ending's first token is missing. The context's last logits predict it.": (
            "max(len(t) - 1 - len(e), 0)",
            "len(t) - 1 - max(len(e) - 1, 1)",
        ),
        "only the ending's last token counts. Take the mean over all of its tokens.": (
            "max(len(t) - 1 - len(e), 0)",
            "len(t) - 2",
        ),
        "you leave out all tokens with the number of your padding. That number is a token like any "
        "other, so tell padding by its position.": ("targets[s])", "targets[s], ignore_index=0)"),
        "your padding comes first, which moves all positions. Put it last.": edits(
            ("batch_first=True)", "batch_first=True, padding_side='left')"),
            ("slice(max(len(t) - 1 - len(e), 0), len(t) - 1)", "slice(-len(e), None)"),
        ),
        "return one loss per text, and not their mean.": (
            "in found])",
            "in found]).mean()[None]",
        ),
        "your losses are wrong for texts of more than block_size + 1 tokens. Keep the last "
        "block_size + 1 tokens, because the ending is there.": [
            ("[-size:]", ""),
            ("[-size:]", "[:size]"),
            ("block_size + 1", "block_size"),
        ],
    },
)
