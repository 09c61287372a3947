"""Exercises of page 11: gradients over processes, and the losses of HellaSwag's endings."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from cs336_course.engine import Case, Exercise, edits, normal
from cs336_course.engine.modules import fill
from cs336_course.engine.ranks import WHYS, StuckError, noting_calls, on_processes
from cs336_course.engine.records import Record, plain
from cs336_course.engine.training import (
    Autocast,
    Passes,
    elsewhere,
    flat_gradient,
    flat_weights,
    one_number,
    watched_forward,
)
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

NOTEBOOK = "11_gpt2_scale"
ELSEWHERE, HALF = "a model on another device", "a model in bf16"


# data_parallel


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


def process_cases() -> Iterator[Case]:
    """Yield numbers of processes, of each one's micro-batches, and the shape of a tensor."""
    yield Case(world=2, each=2, shape=(3,), dtype="float32")
    yield Case("three processes", world=3, each=2, shape=(4, 1), dtype="float32")
    yield Case("a number", world=2, each=3, shape=(), dtype="float32")
    yield Case("an empty tensor", world=2, each=1, shape=(0,), dtype="float32")
    yield Case("whole numbers", world=2, each=1, shape=(3,), dtype="int64")
    yield Case(ELSEWHERE, world=1, each=2, shape=(2,), dtype="float32")


def pieces_of(count: int) -> list[tuple[Tensor, Tensor]]:
    """Draw the micro-batches of a batch, of two windows each."""
    drawn = torch.randint(36, (count, 2, 2, 5), generator=torch.Generator().manual_seed(count))
    return [(x.clone(), y.clone()) for x, y in drawn]


def see_processes(answers: Any, case: Case) -> Record:
    """Observe both functions in one process without a group, and in threads that are a group."""
    sum_over_processes, backward = answers
    world, each, shape, dtype = case.inputs.values()
    if case.what == ELSEWHERE:
        model = small_gpt(5).to("meta")
        return {
            "elsewhere": elsewhere(
                model, lambda: backward(model, iter(pieces_of(each)), each, Autocast())
            )
        }

    def summed(rank: int) -> tuple[Any, Any]:
        mine = (10 * normal(*shape, seed=rank)).to(getattr(torch, dtype))
        returned = sum_over_processes(mine)
        return plain(mine), plain(returned)

    def stepped(rank: int, size: int = world) -> Record:
        model, autocast = small_gpt(5).train(), Autocast()
        passes, before = Passes(model, autocast), flat_weights(model)
        with watched_forward(model, passes.look):
            loss = backward(model, iter(pieces_of(size * each)[rank::size]), size * each, autocast)
        return {
            **passes.facts(),
            "weights moved": not torch.equal(before, flat_weights(model)),
            "the gradient": flat_gradient(model),
            "the loss": one_number(loss),
            "graph": isinstance(loss, Tensor) and loss.requires_grad,
        }

    alone = summed(0), stepped(0, 1)
    try:
        with noting_calls() as works:
            pairs = on_processes(world, summed)
            steps = on_processes(world, stepped)
    except StuckError as stuck:
        return {why: why == stuck.why for why in WHYS}
    record: Record = {**dict.fromkeys(WHYS, False), "waits": all(w.wait.called for w in works)}
    if not record["waits"]:
        return record
    return {
        **record,
        "returns": all(isinstance(returned, Tensor) for _, returned in (alone[0], *pairs)),
        "alone": [*alone[0], alone[1]["the gradient"], alone[1]["the loss"]],
        "each process's tensor": [mine for mine, _ in pairs],
        "the tensor that sum_over_processes returns": [returned for _, returned in pairs],
        **{name: [step[name] for step in steps] for name in steps[0]},
    }


data_parallel = Exercise(
    NOTEBOOK,
    "data_parallel",
    process_cases,
    observe=see_processes,
    answers=("sum_over_processes", "backward"),
    is_part=True,
    given={"dist": dist},
    smaller="Two processes have the micro-batches with the gradients 1, 3 and 2, 6, and count is "
    "4. What does each process hold after its loop, and what must it hold at the end?",
    says={
        "each other": "your processes wait for each other forever. Each of them must call "
        "all_reduce equally often, whatever its rank is.",
        "message": "your processes wait forever for a message that no process sends. Each receive "
        "needs a send.",
        "ends Python": "one of your processes ends Python.",
        "slow": "your processes aren't done after a minute.",
        "waits": "a call with async_op=True, and isend and irecv, return before it is done; call "
        "`wait()` on what they return.",
        "returns": "sum_over_processes returns None; the loop uses "
        "`loss = sum_over_processes(...)`.",
        "alone": "on one process, both functions must do what they did without processes.",
        "each process's tensor": "after sum_over_processes, the tensor isn't the sum over the "
        "processes.",
        "the tensor that sum_over_processes returns": "the tensor that sum_over_processes returns "
        "isn't the sum over the processes.",
        "in training mode": "the model is in evaluation mode; leave it in training mode.",
        "with gradients": "gradients are off in the forward pass, so there is none to add up.",
        "in autocast": "the forward pass must be inside `with autocast:`.",
        "weights moved": "backward changes the weights; add up `parameter.grad`, not the "
        "parameter.",
        "the gradient": "the gradient isn't the one of the whole batch, in each process.",
        "the loss": "the returned loss isn't the one of the whole batch, in each process.",
        "graph": "the returned loss still holds a graph, and with it the activations; add up "
        "loss.detach().",
        "elsewhere": "on a GPU this fails, or its result is on the CPU; move x and y to the "
        "model's device.",
    },
    wrong={
        "without torchrun there is no process group, and PyTorch's collectives raise an error. Ask "
        "dist.is_initialized() first.": ("    if dist.is_initialized():\n        ", "    "),
        "each process has the mean over the processes. The task asks for the sum.": (
            "all_reduce(tensor)",
            "all_reduce(tensor)\n        tensor.copy_(tensor / dist.get_world_size())",
        ),
        "each process still has its own tensor. Either your code leaves it out, for example by an "
        "early `return`, or it adds up a copy; the tensor must change in place, as dist.all_reduce "
        "does it.": [
            ("all_reduce(tensor)", "all_reduce(tensor.clone())"),
            ("dist.all_reduce(tensor)", "pass"),
            (
                "dist.all_reduce(tensor)",
                "new = tensor.clone()\n        dist.all_reduce(new)\n        return new",
            ),
        ],
        "only rank 0 has the sum of all processes. dist.all_reduce gives it to all of them.": (
            "all_reduce(tensor)",
            "reduce(tensor, dst=0)",
        ),
        "you add up the gradients after each micro-batch. What was added up before is then added "
        "up again, so early micro-batches count several times. Add up once, after the loop.": [
            edits(
                ("        sum_over_processes(parameter.grad)", "        pass"),
                (
                    "+= loss.detach()\n",
                    "+= loss.detach()\n        for parameter in model.parameters():\n"
                    "            sum_over_processes(parameter.grad)\n",
                ),
            ),
            (
                "+= loss.detach()\n",
                "+= loss.detach()\n        for parameter in model.parameters():\n"
                "            sum_over_processes(parameter.grad)\n",
            ),
        ],
        "each process has the mean of the gradients. But the loop has divided by the number of "
        "micro-batches of the whole batch, so the gradients must be added up.": (
            "        sum_over_processes(parameter.grad)",
            "        sum_over_processes(parameter.grad)\n"
            "        parameter.grad /= dist.get_world_size() if dist.is_initialized() else 1",
        ),
        "`count` is already the number of micro-batches of the whole batch, of all processes. "
        "Divide by it alone.": [
            ("/ count", f"/ (count {sign} (dist.get_world_size() if dist.is_initialized() else 1))")
            for sign in "*/"
        ],
        "each process returns the loss of its own micro-batches. The loss of the whole batch is "
        "the sum over the processes.": ("return sum_over_processes(total)", "return total"),
        "each process still has its own gradients. sum_over_processes must get `parameter.grad` "
        "itself, and no copy.": [
            ("(parameter.grad)", "(parameter.grad.clone())"),
            ("        sum_over_processes(parameter.grad)", "        pass"),
        ],
        "gradients come out too large, because they are added up twice. model.parameters() lists "
        "the tied matrix once, and other lists may list it under each of its names.": [
            (
                "parameter in model.parameters()",
                "_, parameter in model.named_parameters(remove_duplicate=False)",
            ),
        ],
        "only some gradients are added up. Matrices, biases and gains all have one.": [
            (
                "        sum_over_processes(parameter.grad)",
                f"        if parameter.dim() {which}:\n"
                "            sum_over_processes(parameter.grad)",
            )
            for which in ("> 1", "== 1")
        ],
    },
)


# ending_losses

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
