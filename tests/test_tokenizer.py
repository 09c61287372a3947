import numpy as np
import pytest

from cs336_lib.tokenizer import (
    CharTokenizer,
    GPT2Tokenizer,
    gpt2_encoding,
    load_tokenizer,
    save_tokenizer,
    shakespeare,
)

# What the well-known GPT-2 walkthroughs print for the first lines of tiny Shakespeare.
FIRST_24 = [5962, 22307, 25, 198, 8421, 356, 5120, 597, 2252, 11, 3285, 502]
FIRST_24 += [2740, 13, 198, 198, 3237, 25, 198, 5248, 461, 11, 2740, 13]


def test_gpt2_ids_of_the_corpus_first_lines():
    assert GPT2Tokenizer().encode(shakespeare()[:1000])[:24].tolist() == FIRST_24


@pytest.mark.parametrize(
    "text", ["Hello, I'm a language model,", "naïve — 日本語 🎭", "  \n\n\t x", ""]
)
def test_gpt2_round_trip(text):
    tokenizer = GPT2Tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


def test_gpt2_has_50257_ids_and_one_special():
    encoding = gpt2_encoding()
    assert encoding.n_vocab == GPT2Tokenizer.vocab_size == 50257
    assert encoding.encode("<|endoftext|>", allowed_special="all") == [GPT2Tokenizer.end_of_text]
    assert len(GPT2Tokenizer().encode("<|endoftext|>")) > 1  # in a text it is text


def test_gpt2_equals_tiktokens_own():
    import tiktoken

    try:
        own = tiktoken.get_encoding("gpt2")
    except Exception as error:
        pytest.skip(f"tiktoken's own ranks cannot be reached here: {type(error).__name__}")
    text = shakespeare()[:100_000]
    assert own.encode_ordinary(text) == GPT2Tokenizer().encode(text).tolist()


def test_char_round_trip_and_alphabet():
    tokenizer = CharTokenizer("hello world")
    assert tokenizer.alphabet == " dehlorw"
    ids = tokenizer.encode("hello")
    assert ids.dtype == np.uint16
    assert tokenizer.decode(ids.tolist()) == "hello"


def test_char_names_an_unknown_character():
    with pytest.raises(ValueError, match="'z' is not among the 3"):
        CharTokenizer("abc").encode("abz")
    with pytest.raises(ValueError, match="empty"):
        CharTokenizer("")


@pytest.mark.parametrize("tokenizer", [GPT2Tokenizer(), CharTokenizer('a"\n\u00e9')])
def test_saved_and_loaded(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert (again.name, again.vocab_size) == (tokenizer.name, tokenizer.vocab_size)
    assert again.decode([1, 2]) == tokenizer.decode([1, 2])


@pytest.mark.parametrize("content", ["", "[]", '{"name": "bpe"}', "{}", '{"name": "char"}', "\xff"])
def test_a_foreign_file_is_refused(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=r"tokenizer|empty"):
        load_tokenizer(path)
