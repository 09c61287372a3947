"""Batches of token windows, as pure functions of the seed and the window numbers."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cs336_lib.config import require
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.shards import TokenStream
from cs336_lib.data.tokenizer import Tokenizer, load_tokenizer, make_tokenizer, require_tokenizer

VAL_FRACTION = 0.1  # the plays' last tenth is for validation


def shuffled(index: np.ndarray, n: int, key: int) -> np.ndarray:
    """Shuffle 0..n-1 without storing the order.

    A four-round Feistel network permutes the smallest even number of bits that holds n. Results
    outside 0..n-1 go through the network again until they are inside (Black and Rogaway 2002).

    Args:
        index: Positions in the shuffled order, each in 0..n-1.
        n: Size of the range.
        key: Seed of the shuffle; each key gives another order.

    Returns:
        The numbers at these positions, as int64. All n positions give a permutation.
    """
    half = max(1, (int(n - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    result = index.astype(np.uint64)
    outside = np.ones(len(result), dtype=bool)
    while outside.any():
        left, right = result[outside] >> np.uint64(half), result[outside] & mask
        for round_number in range(4):
            left, right = right, left ^ (_hash(right, key, round_number) & mask)
        result[outside] = (left << np.uint64(half)) | right
        outside = result >= n
    return result.astype(np.int64)


@lru_cache(maxsize=256)
def _salted(key: int, salt: int) -> np.uint64:
    """Return the key of one round of the network."""
    return np.random.SeedSequence([key, salt]).generate_state(1, np.uint64)[0]


def _hash(values: np.ndarray, key: int, salt: int) -> np.ndarray:
    """Scramble 64-bit values (splitmix64's finaliser, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = values + _salted(key, salt)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@lru_cache(maxsize=16)
def _epochs(cycle: int, tokens: int, block_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset and the number of windows of each epoch of a cycle."""
    offsets = shuffled(np.arange(block_size), block_size, hash_key(seed, cycle))
    return offsets, (tokens - 1 - offsets) // block_size


def window_starts(first: int, count: int, tokens: int, block_size: int, seed: int) -> np.ndarray:
    """Return the start positions of a training run's windows `first` to `first + count - 1`.

    An epoch cuts the stream from an offset on into full windows of block_size + 1 tokens, which
    overlap by one, and visits each once in shuffled order. The epochs of a cycle use the offsets
    0..block_size-1, also shuffled, so a cycle visits each of the tokens - block_size possible
    windows exactly once.
    """
    per_cycle = tokens - block_size
    numbers = np.arange(first, first + count, dtype=np.int64)
    starts = np.empty(count, dtype=np.int64)
    for cycle in np.unique(numbers // per_cycle):
        offsets, windows_from = _epochs(int(cycle), tokens, block_size, seed)
        epoch_ends = np.cumsum(windows_from)
        chosen = np.flatnonzero(numbers // per_cycle == cycle)
        position = numbers[chosen] - cycle * per_cycle
        epochs = np.searchsorted(epoch_ends, position, side="right")
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            n = int(windows_from[epoch])
            index = position[inside] - (epoch_ends[epoch] - n)
            order = shuffled(index, n, hash_key(seed, cycle, epoch))
            starts[chosen[inside]] = offsets[epoch] + order * block_size
    return starts


@lru_cache(maxsize=256)
def hash_key(*numbers: int) -> int:
    """Hash several numbers to one key; dropout's seed is such a key of the run's seed and step."""
    state = np.random.SeedSequence([int(n) for n in numbers]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


class Loader:
    """Batches as a pure function of the number of windows that came before.

    Each step uses the same windows for any number of processes and any micro-batch size, and a
    resumed run continues with the next window.

    Args:
        stream: The tokens.
        block_size: Inputs per window.
        vocab_size: Upper bound of the token ids.
        seed: Seed of the order.

    Raises:
        ValueError: The stream is shorter than one window.
    """

    def __init__(self, stream: TokenStream, block_size: int, vocab_size: int, seed: int):
        require(
            len(stream) > block_size,
            f"{stream.names[0]}: {len(stream)} tokens, but one sequence takes block_size + 1 = "
            f"{block_size + 1}; use more data or a smaller block_size",
        )
        self.stream, self.block_size = stream, block_size
        self.vocab_size, self.seed = vocab_size, seed

    def batch(
        self, first: int, count: int
    ) -> tuple[Int[Tensor, "count block_size"], Int[Tensor, "count block_size"]]:
        """Return inputs and targets of `count` windows, starting with window number `first`.

        Targets are the inputs shifted by one.

        Raises:
            ValueError: A token id is outside the vocabulary.
        """
        return self.windows(self.starts(first, count))

    def starts(self, first: int, count: int) -> np.ndarray:
        """Return the positions in the stream of `count` windows from number `first` on."""
        return window_starts(first, count, len(self.stream), self.block_size, self.seed)

    def windows(
        self, starts: Iterable[int]
    ) -> tuple[Int[Tensor, "count block_size"], Int[Tensor, "count block_size"]]:
        """Return inputs and targets of the windows at positions `starts`."""
        rows = [self.stream.read(int(start), self.block_size + 1) for start in starts]
        for start, row in zip(starts, rows, strict=True):
            if row.max() >= self.vocab_size:
                place = self.stream.where(int(start) + int((row >= self.vocab_size).argmax()))
                raise ValueError(
                    f"{place}: id {row.max()}, but the vocabulary has {self.vocab_size}; "
                    f"was this data made with another tokenizer?"
                )
        tokens = torch.from_numpy(np.stack(rows))
        return tokens[:, :-1], tokens[:, 1:]

    def validation_starts(self, tokens: int) -> np.ndarray:
        """Return the positions of up to `tokens` tokens' worth of evenly spaced windows."""
        available = (len(self.stream) - 1) // self.block_size
        count = max(1, min(available, tokens // self.block_size))
        return np.arange(count) * available // count * self.block_size


def prefetched(
    batches: Iterable[tuple[Tensor, Tensor]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Move batches to the device while a thread reads the next one.

    On CUDA that thread also makes the batch contiguous and pins it, so the host only queues the
    copy and doesn't wait for it. A strided tensor would be copied to pageable memory first. The
    copy shares a stream with the kernels, so it doesn't overlap with them.
    """
    batches = iter(batches)

    def read() -> tuple[Tensor, Tensor] | None:
        batch = next(batches, None)
        if batch is None or device.type != "cuda":
            return batch
        return batch[0].contiguous().pin_memory(), batch[1].contiguous().pin_memory()

    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(read)
        while (batch := coming.result()) is not None:
            coming = reader.submit(read)
            yield batch[0].to(device, non_blocking=True), batch[1].to(device, non_blocking=True)


def open_data(
    train_data: str, val_data: str, tokenizer: str
) -> tuple[TokenStream, TokenStream, Tokenizer]:
    """Open the data that a config names.

    Args:
        train_data: A folder made by `cs336 prepare`, a glob pattern of shards of GPT-2's tokens,
            or "" for the plays that ship.
        val_data: A glob pattern of shards; "" means the folder's own validation part.
        tokenizer: "gpt2" or "char".

    Returns:
        The training stream, the validation stream and the tokenizer.

    Raises:
        FileNotFoundError: There is no such data.
        ValueError: The data is damaged or was made with another tokenizer.
    """
    if not train_data:
        require(not val_data, "val_data without train_data; give both, or neither for the corpus")
        text = shakespeare()
        made = make_tokenizer(tokenizer, text)
        ids = made.encode(text)
        cut = int(len(ids) * (1 - VAL_FRACTION))
        name = "the plays that ship"
        return TokenStream([ids[:cut]], [name]), TokenStream([ids[cut:]], [name]), made
    folder = Path(train_data)
    if folder.is_dir():
        made = load_tokenizer(folder / "tokenizer.json")
        require(
            made.name == tokenizer,
            f"{folder} was prepared with tokenizer {made.name!r}, this run has {tokenizer!r}; "
            f"pass --tokenizer {made.name}",
        )
        train = TokenStream.from_folder(folder, "train")
        if not val_data:
            return train, TokenStream.from_folder(folder, "val"), made
        advice = f"leave out --val-data to validate on {folder}'s own part"
    else:
        made = make_tokenizer("gpt2", "")
        train = TokenStream.from_pattern(train_data)
        require_tokenizer(train.names, made, "pass --train-data {folder} --tokenizer {name}")
        require(
            tokenizer == "gpt2",
            f"{train_data}: shards outside a folder made by `cs336 prepare` are read as GPT-2's "
            f"tokens; pass --tokenizer gpt2, or the folder",
        )
        require(bool(val_data), "--val-data is missing; give a pattern of .bin shards")
        advice = "pass --val-data with shards of GPT-2's tokens"
    val = TokenStream.from_pattern(val_data)
    require_tokenizer(val.names, made, advice)
    return train, val, made
