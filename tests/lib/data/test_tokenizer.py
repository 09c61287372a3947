import numpy as np
import pytest

from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import (
    CharTokenizer,
    GPT2Tokenizer,
    ShortGPT2Tokenizer,
    load_tokenizer,
    save_tokenizer,
)

# What the well-known GPT-2 walkthroughs print for the first lines of tiny Shakespeare.
FIRST_24 = [5962, 22307, 25, 198, 8421, 356, 5120, 597, 2252, 11, 3285, 502]
FIRST_24 += [2740, 13, 198, 198, 3237, 25, 198, 5248, 461, 11, 2740, 13]


def test_gpt2_ids_of_the_corpus_first_lines():
    assert GPT2Tokenizer().encode(shakespeare()[:1000])[:24].tolist() == FIRST_24


def test_the_first_tokens_of_gpt2_are_an_encoding_of_their_own(tmp_path):
    short, text = ShortGPT2Tokenizer(), shakespeare()[:50_000] + "\u00e9\u4e2d"
    ids = short.encode(text)
    assert ids.max() < short.vocab_size == 1024
    assert short.decode(ids.tolist()) == text
    assert 2 < len(text) / len(ids) < 3
    words = [short.decode([i]) for i in short.encode(" the king's").tolist()]
    assert words == [" the", " k", "ing", "'s"]
    assert short not in (GPT2Tokenizer(), CharTokenizer("ab"))
    save_tokenizer(short, tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json") == short


def test_gpt2_round_trip():
    tokenizer = GPT2Tokenizer()
    for text in ("Hello, I'm a language model,", "naïve — 日本語 🎭", "  \n\n\t x", ""):
        assert tokenizer.decode(tokenizer.encode(text).tolist()) == text
    assert tokenizer.decode(tokenizer.encode("half \ud83d, whole \ud83c\udfad").tolist()) == (
        "half \N{REPLACEMENT CHARACTER}, whole 🎭"
    )
    assert len(tokenizer.encode(" " * 500_000 + "x")) == 500_000
    with pytest.raises(ValueError, match="a run of blanks is too long"):
        tokenizer.encode(" " * 2_000_000 + "x")


def test_char_round_trip_and_alphabet():
    tokenizer = CharTokenizer("hello world")
    assert tokenizer.alphabet == " dehlorw"
    ids = tokenizer.encode("hello")
    assert ids.dtype == np.uint16
    assert tokenizer.decode(ids.tolist()) == "hello"
    with pytest.raises(ValueError, match="'z' is not among the 3"):
        CharTokenizer("abc").encode("abz")
    with pytest.raises(ValueError, match="empty"):
        CharTokenizer("")
