"""GPT-2's byte-pair encoding, its first tokens alone, and a character tokenizer, all offline."""

import base64
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import tiktoken

from cs336_lib.config import UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import inside, read_json, write_atomic

# GPT-2 splits text into words with this pattern before it merges bytes (its encoder.py, line 53).
GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

END_OF_TEXT = "<|endoftext|>"


class Tokenizer(ABC):
    """Base class of the tokenizers.

    Two tokenizers are equal if they assign the same ids to every text.

    Attributes:
        name: Name of the tokenizer, "gpt2", "gpt2-1k" or "char".
        vocab_size: Number of token ids.
        end_of_text: Id that separates documents, or `None`.
        alphabet: Characters of a char tokenizer in the order of their ids, or "" for the others.
    """

    name: str
    vocab_size: int
    end_of_text: int | None = None
    alphabet = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """SHA-256 of the name and the alphabet."""
        return hashlib.sha256(
            f"{self.name} {self.alphabet}".encode(errors="surrogatepass")
        ).hexdigest()

    def __str__(self) -> str:
        return f"{self.name} with {self.vocab_size:,} ids {self.alphabet!r:.60}"

    @property
    def new_document(self) -> int:
        """Id before each document: <|endoftext|>, or else a newline, or else the first id."""
        if self.end_of_text is not None:
            return self.end_of_text
        return int(self.encode("\n")[0]) if "\n" in (self.alphabet or "\n") else 0

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Return the token ids of `text` as uint16."""

    @abstractmethod
    def decode_bytes(self, ids: list[int]) -> bytes:
        """Return the UTF-8 bytes of token ids. The last character may be incomplete."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids, with invalid UTF-8 replaced by U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")


@cache
def gpt2_encoding(tokens: int = 50256) -> tiktoken.Encoding:
    """Build tiktoken's GPT-2 encoding from the vocabulary in data/, without a download.

    Args:
        tokens: Number of tokens to keep. They are in the order in which GPT-2's were merged, so the
            first ones are an encoding of their own. Only all of them have <|endoftext|>.
    """
    lines = (DATA / "gpt2.tiktoken").read_bytes().split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines[:tokens])}
    special = {END_OF_TEXT: 50256} if tokens == 50256 else {}
    return tiktoken.Encoding(
        "gpt2",
        pat_str=GPT2_SPLIT,
        mergeable_ranks=ranks,
        special_tokens=special,
        explicit_n_vocab=tokens + len(special),
    )


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte-pair encoding with 50,257 ids. The last id is <|endoftext|>."""

    name = "gpt2"
    vocab_size = 50257
    end_of_text: int | None = 50256

    @property
    def encoding(self) -> tiktoken.Encoding:
        """The encoding of tiktoken."""
        return gpt2_encoding(self.vocab_size - (self.end_of_text is not None))

    def encode(self, text: str) -> np.ndarray:
        """Return the token ids of `text` as uint16.

        The string <|endoftext|> is encoded as ordinary text. Lone surrogates are replaced by
        U+FFFD. Several threads can encode in parallel, because tiktoken releases the GIL. Raises
        `UserError` if the text has a run of about a million blanks.
        """
        try:
            return self.encoding.encode_to_numpy(text, disallowed_special=()).astype(np.uint16)
        except UnicodeEncodeError:
            return self.encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        except ValueError:  # GPT2_SPLIT's (?!\S) has a limited stack
            raise UserError("a run of blanks is too long for GPT-2's tokens; shorten it") from None

    def decode_bytes(self, ids: list[int]) -> bytes:
        """Return the bytes of `ids`.

        A non-ASCII character can span several ids.
        """
        return self.encoding.decode_bytes(ids)


class ShortGPT2Tokenizer(GPT2Tokenizer):
    """The first 1,024 of GPT-2's tokens, without <|endoftext|>.

    A small model would spend most of its time on the output matrix of 50,257 tokens. These tokens
    still hold about twice as many letters as a character.
    """

    name = "gpt2-1k"
    vocab_size = 1024
    end_of_text = None


class CharTokenizer(Tokenizer):
    """Tokenizer with one id per character, in code point order."""

    name = "char"

    def __init__(self, alphabet: str):
        if not alphabet:
            raise UserError("the text is empty; a char tokenizer needs its characters")
        if len(set(alphabet)) > 2**16:
            raise UserError("more than 65,536 different characters")
        self.alphabet = "".join(sorted(set(alphabet)))
        self.vocab_size = len(self.alphabet)
        self._points = np.array([ord(c) for c in self.alphabet], dtype=np.uint32)

    def encode(self, text: str) -> np.ndarray:
        """Return the token ids of `text` as uint16.

        Raises `UserError` if a character isn't in the alphabet.
        """
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        ids = np.searchsorted(self._points, points).clip(max=self.vocab_size - 1)
        unknown = self._points[ids] != points
        if unknown.any():
            character = chr(points[unknown.argmax()])
            known = f"the {self.vocab_size} of this tokenizer: {self.alphabet!r}"
            raise UserError(f"character {character!r} is not among {known}")
        return ids.astype(np.uint16)

    def decode_bytes(self, ids: list[int]) -> bytes:
        """Return the characters of `ids` as UTF-8."""
        return "".join(self.alphabet[i] for i in ids).encode()


NAMES = (GPT2Tokenizer.name, ShortGPT2Tokenizer.name, CharTokenizer.name)


def make_tokenizer(name: str, text: str) -> Tokenizer:
    """Create the tokenizer "gpt2" or "gpt2-1k", or "char" for the characters of `text`."""
    for kind in (GPT2Tokenizer, ShortGPT2Tokenizer):
        if name == kind.name:
            return kind()
    if name != CharTokenizer.name:
        raise UserError(f"tokenizer {name!r} is unknown; one of {', '.join(NAMES)} expected")
    return CharTokenizer(text)


FIELDS = {"name", "alphabet", "sha256"}  # of a tokenizer.json


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer.json for `load_tokenizer`."""
    description = {"name": tokenizer.name, "sha256": tokenizer.digest}
    if isinstance(tokenizer, CharTokenizer):
        description["alphabet"] = tokenizer.alphabet
    write_atomic(path, json.dumps(description) + "\n")


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json written by `save_tokenizer`. Old files have no checksum.

    Raises:
        FileNotFoundError: If the file doesn't exist.
        UserError: If `save_tokenizer` didn't write the file, or it has changed since.
    """
    description = read_json(inside(path.parent, path.name))
    name, alphabet = description.get("name", ""), description.get("alphabet", "")
    # Encoding drops lone surrogates.
    is_text = isinstance(alphabet, str) and alphabet.encode(errors="ignore").decode() == alphabet
    if name not in NAMES or not is_text or not description.keys() <= FIELDS:
        raise UserError(
            f"{path}: not one of our tokenizer files, which name gpt2, gpt2-1k, or char and "
            "an alphabet"
        )
    made = make_tokenizer(name, alphabet)
    if made.alphabet != alphabet or description.get("sha256", made.digest) != made.digest:
        damage = "its checksum differs or its alphabet isn't sorted"
        raise UserError(f"{path}: damaged ({damage}); restore it from a copy")
    return made


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """Load the tokenizer of a run or of prepared data.

    Returns:
        The tokenizer, or `None` if the folder has no tokenizer.json of ours.

    Raises:
        UserError: If the file is corrupt.
    """
    path = folder / "tokenizer.json"
    if not path.is_file() or not FIELDS & read_json(path).keys():
        return None
    return load_tokenizer(path)


def require_tokenizer(shards: Iterable[str], tokenizer: Tokenizer) -> None:
    """Raise `UserError` if a folder of shards has a different tokenizer."""
    for folder in dict.fromkeys(Path(shard).parent for shard in shards):
        theirs = tokenizer_of(folder)
        if theirs not in (None, tokenizer):
            raise UserError(
                f"{folder} was prepared with tokenizer {theirs}, but this run has {tokenizer}; "
                "pass --train-data, --val-data and --tokenizer that belong together"
            )
