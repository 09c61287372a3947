"""Text to token ids and back, offline: GPT-2's byte-pair encoding and one id per character."""

import base64
import json
import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import tiktoken

from cs336_lib.config import require
from cs336_lib.data.corpus import DATA
from cs336_lib.io import inside, read_json, write_atomic

# How GPT-2 cuts text into words before merging bytes (its encoder.py, line 53).
GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

END_OF_TEXT = "<|endoftext|>"

# Of a run of a million blanks or line ends, the alternative with (?!\S) needs more stack than
# tiktoken's regular expressions have, and that ends Python with a Rust panic.
LONGEST_BLANK = 100_000

BLANK = re.compile(rf"\s{{1,{LONGEST_BLANK}}}")


class Tokenizer(Protocol):
    """What the rest of the package asks of a tokenizer."""

    name: str
    vocab_size: int
    end_of_text: int | None

    def encode(self, text: str) -> np.ndarray:
        """Token ids of `text`, as uint16."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text of token ids."""
        ...

    def decode_bytes(self, ids: list[int]) -> bytes:
        """The bytes of token ids, which may end inside a character."""
        ...


@cache
def gpt2_encoding() -> tiktoken.Encoding:
    """tiktoken's GPT-2 encoding, built from the ranks that ship: no network, nothing cached."""
    lines = (DATA / "gpt2.tiktoken").read_bytes().split(b"\n")
    ranks = {
        base64.b64decode(token): int(rank) for token, rank in map(bytes.split, filter(None, lines))
    }
    return tiktoken.Encoding(
        "gpt2",
        pat_str=GPT2_SPLIT,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: 50256},
        explicit_n_vocab=50257,
    )


def cut_blanks(text: str) -> list[str]:
    """The text, cut after every LONGEST_BLANK blanks and line ends in a row."""
    half = LONGEST_BLANK // 2  # such a run fills one of these blocks; any other check is slower
    blocks = (text[i : i + half] for i in range(0, len(text), half))
    if not any(block.isspace() for block in blocks):
        return [text]
    found = (match.span() for match in BLANK.finditer(text))
    cuts = [end for start, end in found if end - start == LONGEST_BLANK]
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


class GPT2Tokenizer:
    """GPT-2's byte-pair encoding: 50,257 ids, of which the last is <|endoftext|>."""

    name = "gpt2"
    vocab_size = 50257
    end_of_text = 50256

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GPT2Tokenizer)

    def __hash__(self) -> int:
        return hash(self.name)

    def encode(self, text: str) -> np.ndarray:
        """Token ids; a literal <|endoftext|> in the text is text, not the special token."""
        pieces = map(gpt2_encoding().encode_ordinary, cut_blanks(text))
        return np.concatenate([np.array(ids, dtype=np.uint16) for ids in pieces])

    def decode(self, ids: list[int]) -> str:
        """Text; bytes that are no valid UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: list[int]) -> bytes:
        """The bytes of `ids`; a character outside ASCII can be spread over several ids."""
        return gpt2_encoding().decode_bytes(ids)


class CharTokenizer:
    """One id per character of a fixed alphabet, in code point order."""

    name = "char"
    end_of_text = None

    def __init__(self, alphabet: str):
        require(len(alphabet) > 0, "the text is empty; a char tokenizer needs its characters")
        require(len(set(alphabet)) <= 2**16, "more than 65,536 different characters")
        self.alphabet = "".join(sorted(set(alphabet)))
        self.vocab_size = len(self.alphabet)
        self._points = np.array([ord(c) for c in self.alphabet], dtype=np.uint32)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharTokenizer) and self.alphabet == other.alphabet

    def __hash__(self) -> int:
        return hash(self.alphabet)

    def encode(self, text: str) -> np.ndarray:
        """Token ids.

        Raises:
            ValueError: the text has a character that is not in the alphabet.
        """
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ids = np.searchsorted(self._points, points).clip(max=self.vocab_size - 1)
        unknown = self._points[ids] != points
        if unknown.any():
            character = chr(points[unknown.argmax()])
            raise ValueError(
                f"character {character!r} is not among the {self.vocab_size} this tokenizer knows: "
                f"{self.alphabet!r}"
            )
        return ids.astype(np.uint16)

    def decode(self, ids: list[int]) -> str:
        """The characters of `ids`."""
        return "".join(self.alphabet[i] for i in ids)

    def decode_bytes(self, ids: list[int]) -> bytes:
        """The characters of `ids`, as UTF-8."""
        return self.decode(ids).encode()


def make_tokenizer(name: str, text: str) -> Tokenizer:
    """The tokenizer called `name`; `text` is where `char` takes its alphabet from."""
    require(name in ("gpt2", "char"), f"tokenizer {name!r} is unknown; gpt2 or char expected")
    return GPT2Tokenizer() if name == "gpt2" else CharTokenizer(text)


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write what `load_tokenizer` needs, as JSON."""
    description = {"name": tokenizer.name}
    if isinstance(tokenizer, CharTokenizer):
        description["alphabet"] = tokenizer.alphabet
    write_atomic(path, json.dumps(description) + "\n")


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json written by `save_tokenizer`.

    Raises:
        ValueError: there is no such file, or it is something else.
    """
    require(path.is_file(), f"{path}: not found; a run folder and prepared data hold one")
    description = read_json(inside(path.parent, path.name))
    name, alphabet = description.get("name"), description.get("alphabet", "")
    require(
        name in ("gpt2", "char")
        and isinstance(alphabet, str)
        and alphabet.encode(errors="ignore").decode() == alphabet,  # no halves of surrogate pairs
        f"{path}: not a tokenizer file of ours, which has the name gpt2, or char and an alphabet",
    )
    return make_tokenizer(name, alphabet)


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """The tokenizer of a run folder, of prepared data or of a char model that we exported.

    None where there is no tokenizer.json, or another of Hugging Face's, which we do not read.

    Raises:
        ValueError: it is damaged.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    described = read_json(path)
    if "name" in described:
        return load_tokenizer(path)
    model = described.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or any(len(token) != 1 for token in vocab) or not vocab:
        return None
    made = CharTokenizer("".join(vocab))
    return made if vocab == {c: number for number, c in enumerate(made.alphabet)} else None


def require_tokenizer(shards: Iterable[str], made: Tokenizer, advice: str) -> None:
    """Refuse shards that lie beside the tokenizer.json of another tokenizer than `made`.

    Raises:
        ValueError: they do; `advice` ends the line, with {folder} and {name} filled in.
    """
    for folder in dict.fromkeys(Path(shard).parent for shard in shards):
        theirs = tokenizer_of(folder)
        if theirs is None or theirs == made:
            continue
        other = "another alphabet" if theirs.name == made.name else f"tokenizer {theirs.name!r}"
        end = advice.replace("{folder}", str(folder)).replace("{name}", theirs.name)
        raise ValueError(
            f"{folder} was prepared with {other} and would be read with this run's "
            f"{made.name!r}; {end}"
        )
