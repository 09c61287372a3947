import pytest
import torch

from cs336_lib.generate import complete, context_start, filter_logits, generate, stream
from cs336_lib.model import GPT
from cs336_lib.tokenizer import CharTokenizer, GPT2Tokenizer


@pytest.fixture
def model(tiny_config):
    model = GPT(tiny_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)  # so that logits differ
    return model


@pytest.mark.parametrize("prompt", [1, 7, 16, 20])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"seed": 5}, {"seed": 5, "top_k": 3}])
def test_cached_equals_uncached(model, prompt, sampling):
    idx = torch.randint(50, (2, prompt))
    cached = generate(model, idx, 40, **sampling)  # far past the block size of 16
    assert torch.equal(cached, generate(model, idx, 40, use_cache=False, **sampling))
    assert torch.equal(cached[:, :prompt], idx)
    assert cached.shape == (2, prompt + 40)


def test_same_seed_same_text_other_seed_other_text(model):
    idx = torch.zeros(1, 1, dtype=torch.long)
    one, again, other = (generate(model, idx, 30, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_greedy_takes_the_likeliest(model):
    idx = torch.randint(50, (3, 4))
    assert torch.equal(
        generate(model, idx, 1, temperature=0.0)[:, -1], model(idx)[:, -1].argmax(-1)
    )


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


def test_sampling_follows_the_probabilities(model):
    idx = torch.zeros(4000, 1, dtype=torch.long)
    drawn = generate(model, idx, 1, seed=0)[:, -1]
    wanted = model(idx[:1])[0, -1].softmax(-1)
    assert (torch.bincount(drawn, minlength=50) / 4000 - wanted).abs().max() < 0.04


def test_the_context_moves_in_half_blocks():
    assert [context_start(n, 8) for n in (1, 8, 9, 12, 13, 16, 17)] == [0, 0, 4, 4, 8, 8, 12]
    assert all(0 < n - context_start(n, 8) <= 8 for n in range(1, 100))
    assert all(n - context_start(n, 1) == 1 for n in range(1, 10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
    ],
)
def test_bad_arguments_are_named(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        next(stream(model, torch.zeros(1, 1, dtype=torch.long), 1, **arguments))
    with pytest.raises(ValueError, match="prompt is empty"):
        next(stream(model, torch.zeros(1, 0, dtype=torch.long), 1))


def test_text_in_text_out(model):
    alphabet = "".join(chr(ord("0") + i) for i in range(50))
    tokenizer = CharTokenizer(alphabet)
    text = complete(model, tokenizer, "0123", 25, seed=1)
    assert text.startswith("0123")
    assert len(text) == 29


def test_characters_spread_over_tokens_come_out_whole(monkeypatch):
    from cs336_lib import generate as module

    tokenizer = GPT2Tokenizer()
    text = "naïve 日本 🎭!"
    ids = tokenizer.encode(text).tolist()
    monkeypatch.setattr(module, "stream", lambda *a, **k: iter(torch.tensor(ids)[:, None]))
    pieces = list(module.stream_text(None, tokenizer, "x", 99))
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces)
    monkeypatch.setattr(module, "stream", lambda *a, **k: iter(torch.tensor(ids[:-2])[:, None]))
    assert "".join(module.stream_text(None, tokenizer, "x", 99)).endswith("�")


def test_training_mode_comes_back(model):
    model.train()
    generate(model, torch.zeros(1, 1, dtype=torch.long), 2, seed=0)
    assert model.training
