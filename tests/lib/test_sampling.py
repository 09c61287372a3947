import pytest
import torch

from cs336_lib import sampling as module
from cs336_lib.data.tokenizer import END_OF_TEXT, CharTokenizer, GPT2Tokenizer
from cs336_lib.model import GPT
from cs336_lib.sampling import (
    PackedLinear,
    complete,
    context_start,
    encode,
    filter_logits,
    generate,
    store_weights,
    stream,
    stream_text,
)
from cs336_lib.system import cpu

HOW = [{"temperature": 0.0}, {"seed": 5}, {"seed": 5, "top_k": 3}, {"seed": 5, "top_p": 0.6}]


@pytest.fixture
def tokenizer():
    """A character for each of the model's 50 ids."""
    return CharTokenizer("".join(chr(ord("0") + i) for i in range(50)))


def greedy_by_hand(model: GPT, prompt: torch.Tensor, count: int) -> torch.Tensor:
    """No cache, no batch: the whole context is read again for each token."""
    for _ in range(count):
        context = prompt[context_start(len(prompt), model.config.block_size) :]
        prompt = torch.cat((prompt, model(context[None])[0, -1:].argmax(-1)))
    return prompt


def test_top_k_and_top_p_by_hand():
    probabilities = torch.tensor([[0.5, 0.25, 0.15, 0.1]])
    logits = probabilities.log()

    def kept(**how) -> list[int]:
        return filter_logits(logits, **how).isfinite()[0].nonzero()[:, 0].tolist()

    assert kept(top_k=1) == [0]
    assert kept(top_k=3) == [0, 1, 2]
    assert kept(top_k=99) == [0, 1, 2, 3]
    assert kept(top_p=0.4) == [0]  # the likeliest always stays
    assert kept(top_p=0.6) == [0, 1]
    assert kept(top_p=0.76) == [0, 1, 2]
    assert kept(top_p=1.0) == [0, 1, 2, 3]
    sharpened = filter_logits(logits, temperature=0.5).softmax(-1)
    assert torch.allclose(sharpened, probabilities**2 / (probabilities**2).sum())
    many = torch.randn(1, 50257) * 3  # so many that their rounded sum is 1 before the last
    assert torch.equal(filter_logits(many, top_p=1.0), many)
    assert filter_logits(many, top_p=0.999).isinf().any()


def test_logits_that_are_not_finite_are_refused(model):
    for wrong in (float("nan"), float("inf")):
        torch.nn.init.constant_(model.transformer.ln_f.bias, wrong)
        for sampling in ({"temperature": 0.0, "stop_token": 49}, {"seed": 5}):
            tokens = stream(model, torch.randint(50, (2, 9)), 5, **sampling)
            with pytest.raises(ValueError, match=r"not finite; use --weights fp32"):
                next(tokens)


def test_sampling_follows_the_probabilities(model):
    idx = torch.zeros(4000, 1, dtype=torch.long)
    drawn = generate(model, idx, 1, seed=0)[:, -1]
    wanted = model(idx[:1])[0, -1].softmax(-1)
    assert (torch.bincount(drawn, minlength=50) / 4000 - wanted).abs().max() < 0.04


def test_greedy_is_what_the_documented_context_says(model):
    for length in (1, 16, 50):
        prompt = torch.randint(50, (length,))
        expected = greedy_by_hand(model, prompt, 40)
        assert torch.equal(generate(model, prompt[None], 40, temperature=0.0)[0], expected)


@pytest.mark.parametrize("length", [5, 40])  # below and above the block size of 16
def test_each_row_is_what_it_is_alone(model, length):
    prompts = torch.randint(50, (4, length))
    for sampling in (*HOW, HOW[1] | {"use_cache": False}):
        together = generate(model, prompts, 40, **sampling)
        for row, (prompt, made) in enumerate(zip(prompts, together, strict=True)):
            own = sampling | ({"seed": sampling["seed"] + row} if "seed" in sampling else {})
            assert torch.equal(made, generate(model, prompt[None], 40, **own)[0])


def test_a_stopped_row_leaves_the_others_alone(model):
    prompts = torch.randint(50, (3, 4))
    free = generate(model, prompts, 30, seed=2)
    drawn, others = free[0, 4:].tolist(), free[1:, 4:]
    at, stop = next((i, t) for i, t in enumerate(drawn) if i > 1 and t not in others)
    rows = generate(model, prompts, 30, seed=2, stop_token=stop)
    assert torch.equal(rows[0, : 4 + at + 1], free[0, : 4 + at + 1])  # with the stop token
    assert (rows[0, 4 + at :] == stop).all()
    assert torch.equal(rows[1:], free[1:])


def test_text_ends_before_end_of_text(model, tokenizer):
    free = complete(model, tokenizer, "0123", 25, seed=1)
    assert len(free) == 29  # characters have no <|endoftext|>
    tokenizer.end_of_text = int(tokenizer.encode(free[12])[0])
    expected = free[: free.index(free[12], 4)]
    assert complete(model, tokenizer, "0123", 25, seed=1) == expected
    assert "".join(stream_text(model, tokenizer, "0123", 25, seed=1)) == expected[4:]
    assert complete(model, tokenizer, "0123", 25, seed=1, stop=False) == free


def test_a_prompt_without_text_begins_a_new_document():
    gpt2, letters = GPT2Tokenizer(), CharTokenizer("ab\n")
    assert [encode(gpt2, p).tolist() for p in ("", END_OF_TEXT)] == [[50256], [50256]]
    assert encode(letters, "a" + END_OF_TEXT + "b").tolist() == letters.encode("a\nb").tolist()


def test_characters_spread_over_tokens_come_out_whole(monkeypatch):
    tokenizer = GPT2Tokenizer()
    text = "naïve 日本 🎭!"
    ids = tokenizer.encode(text).tolist()
    monkeypatch.setattr(module, "stream", lambda *a, **k: iter(torch.tensor(ids)[:, None]))
    pieces = list(module.stream_text(None, tokenizer, "x", 99))
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces)
    monkeypatch.setattr(module, "stream", lambda *a, **k: iter(torch.tensor(ids[:-2])[:, None]))
    assert "".join(module.stream_text(None, tokenizer, "x", 99)).endswith("�")


WEIGHTS = ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2))


@pytest.mark.parametrize("packs", [True, False])
def test_other_weights_change_logits_by_rounding_only(tiny_config, monkeypatch, packs):
    monkeypatch.setenv("CS336_CPU_BF16", "1")
    if not packs:  # as on a CPU that has no such layer
        monkeypatch.setattr(cpu, "packed_linear", lambda *layer: None)
    several, single = torch.randint(50, (2, 9)), torch.randint(50, (1, 1))
    for dtype, digits in WEIGHTS:
        model = GPT(tiny_config).eval()
        expected = [model(idx) for idx in (several, single)]
        store_weights(model, dtype)
        kinds = {type(part) for part in model.modules()}
        assert packs or (PackedLinear in kinds) == (dtype != torch.float32)
        for idx, exact in zip((several, single), expected, strict=True):
            found = model(idx)
            assert found.dtype == torch.float32
            assert (found - exact).abs().max() < digits * exact.abs().max()
            assert not torch.equal(found, exact) or dtype == torch.float32
        cached = generate(model, several[:1], 12, temperature=0.0)
        uncached = generate(model, several[:1], 12, temperature=0.0, use_cache=False)
        assert torch.equal(cached, uncached)
