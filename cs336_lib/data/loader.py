"""Load shuffled batches of token windows."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cs336_lib.config import UserError
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.shards import TokenStream
from cs336_lib.data.tokenizer import Tokenizer, load_tokenizer, make_tokenizer, require_tokenizer

VAL_FRACTION = 0.1  # the plays' last tenth is for validation


def shuffled(index: np.ndarray, n: int, key: int) -> np.ndarray:
    """Apply a pseudorandom permutation of 0..n-1 without storing it.

    A four-round Feistel network permutes all integers with an even number of bits, which is as
    small as possible for n. Results outside 0..n-1 are passed through the network again until they
    are in range (Black and Rogaway 2002).

    Args:
        index: Integers in 0..n-1 to map.
        n: Size of the range.
        key: Seed of the permutation.

    Returns:
        The permuted integers, int64, with the shape of `index`.
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
def _key(*numbers: int) -> np.uint64:
    """Hash several numbers to 64 bits."""
    return np.random.SeedSequence([int(n) for n in numbers]).generate_state(1, np.uint64)[0]


def hash_key(*numbers: int) -> int:
    """Hash several numbers, such as a seed and a step, to a 63-bit seed."""
    return int(_key(*numbers) >> np.uint64(1))


def _hash(values: np.ndarray, key: int, salt: int) -> np.ndarray:
    """Hash 64-bit values with the finalizer of splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = values + _key(key, salt)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@lru_cache(maxsize=16)
def _epochs(cycle: int, tokens: int, block_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset of each epoch in a cycle, and the number of windows up to its end."""
    offsets = shuffled(np.arange(block_size), block_size, hash_key(seed, cycle))
    return offsets, np.cumsum((tokens - 1 - offsets) // block_size)


def window_starts(first: int, count: int, tokens: int, block_size: int, seed: int) -> np.ndarray:
    """Return the start positions of training windows `first` to `first + count - 1`.

    An epoch splits the stream into windows of block_size + 1 tokens, starting at some offset.
    Consecutive windows overlap by one token. An epoch visits each of its windows once, in shuffled
    order. A cycle consists of block_size epochs with the offsets 0..block_size-1 in shuffled order,
    so it visits each of the tokens - block_size possible windows exactly once.

    Returns:
        Start positions, int64, shape (count,).
    """
    starts = [np.zeros(0, dtype=np.int64)]
    end = first + count
    while first < end:
        cycle, position = divmod(first, tokens - block_size)
        offsets, epoch_ends = _epochs(cycle, tokens, block_size, seed)
        epoch = int(np.searchsorted(epoch_ends, position, side="right"))
        size = int(tokens - 1 - offsets[epoch]) // block_size
        begin = position - int(epoch_ends[epoch]) + size
        index = np.arange(begin, min(size, begin + end - first))
        order = shuffled(index, size, hash_key(seed, cycle, epoch))
        starts.append(offsets[epoch] + order * block_size)
        first += len(index)
    return np.concatenate(starts)


class Loader:
    """Loader for shuffled training windows and fixed validation windows.

    The windows of a step depend only on the seed and the number of earlier windows. They are
    therefore the same for any number of processes, for any micro-batch size, and after a resume.

    Args:
        stream: The tokens.
        block_size: Number of inputs per window. A window has block_size + 1 tokens.
        vocab_size: Size of the vocabulary. Token ids must be smaller.
        seed: Seed of the order.

    Raises:
        UserError: If the stream is shorter than one window.
    """

    def __init__(self, stream: TokenStream, block_size: int, vocab_size: int, seed: int):
        if len(stream) <= block_size:
            raise UserError(
                f"{stream.names[0]}: {len(stream)} tokens, but one sequence takes block_size + 1 = "
                f"{block_size + 1}; use more data or a smaller block_size"
            )
        self.stream, self.block_size = stream, block_size
        self.vocab_size, self.seed = vocab_size, seed

    def batch(
        self, first: int, count: int
    ) -> tuple[Int[Tensor, "count block_size"], Int[Tensor, "count block_size"]]:
        """Return the inputs and targets of windows `first` to `first + count - 1`.

        Targets are the inputs shifted by one token. Raises `UserError` if a token id is outside
        the vocabulary.
        """
        return self.windows(self.starts(first, count))

    def starts(self, first: int, count: int) -> np.ndarray:
        """Return the start positions of windows `first` to `first + count - 1`."""
        return window_starts(first, count, len(self.stream), self.block_size, self.seed)

    def windows(
        self, starts: Iterable[int]
    ) -> tuple[Int[Tensor, "count block_size"], Int[Tensor, "count block_size"]]:
        """Return the inputs and targets of windows that start at the positions `starts`."""
        starts = [int(start) for start in starts]
        rows = np.stack([self.stream.read(start, self.block_size + 1) for start in starts])
        if rows.max() >= self.vocab_size:
            row, column = np.argwhere(rows >= self.vocab_size)[0]
            raise UserError(
                f"{self.stream.where(starts[row] + int(column))}: id {rows[row, column]}, but the "
                f"vocabulary has {self.vocab_size}; was this data made with another tokenizer?"
            )
        tokens = torch.from_numpy(rows)
        return tokens[:, :-1], tokens[:, 1:]

    def validation_starts(self, tokens: int) -> np.ndarray:
        """Return the start positions of evenly spaced windows with up to `tokens` targets."""
        available = (len(self.stream) - 1) // self.block_size
        count = max(1, min(available, tokens // self.block_size))
        return np.arange(count) * available // count * self.block_size


def prefetched(
    batches: Iterable[tuple[Tensor, Tensor]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Move batches to the device while a background thread reads the next batch.

    On CUDA, the thread also makes the batch contiguous and pins its memory, so the copy to the
    device is asynchronous. PyTorch would copy a non-contiguous tensor to pageable memory first. The
    copy runs on the same CUDA stream as the kernels, so it doesn't overlap with them.

    Other devices copy from pageable memory, and the host waits for that. An asynchronous copy could
    read a batch that has been freed (https://github.com/pytorch/pytorch/issues/189690).
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
            x, y = (tensor.to(device, non_blocking=tensor.is_pinned()) for tensor in batch)
            yield x, y


def open_data(
    train_data: str, val_data: str, tokenizer: str
) -> tuple[TokenStream, TokenStream, Tokenizer]:
    """Open training data, validation data and their tokenizer.

    Args:
        train_data: A folder made by `cs336 prepare`, a glob pattern of shards with GPT-2 tokens, or
            "" for the plays in data/.
        val_data: A folder or glob pattern, or "" for the validation part of `train_data`.
        tokenizer: Name of the tokenizer, "gpt2" or "char".

    Returns:
        The training stream, the validation stream and the tokenizer.

    Raises:
        FileNotFoundError: If the data doesn't exist.
        UserError: If the data is corrupt or was prepared with a different tokenizer.
    """
    if not train_data:
        if val_data:
            raise UserError("val_data without train_data; give both, or neither for the corpus")
        text = shakespeare()
        made = make_tokenizer(tokenizer, text)
        ids = made.encode(text)
        cut = int(len(ids) * (1 - VAL_FRACTION))
        name = "the plays that ship"
        return TokenStream([ids[:cut]], [name]), TokenStream([ids[cut:]], [name]), made
    folder, train = Path(train_data), TokenStream.open(train_data, "train")
    if folder.is_dir():
        made = load_tokenizer(folder / "tokenizer.json")
        if made.name != tokenizer:
            raise UserError(
                f"{folder} was prepared with tokenizer {made.name!r}; pass --tokenizer {made.name}"
            )
    else:
        made = make_tokenizer("gpt2", "")
        if tokenizer != "gpt2" or not val_data:
            raise UserError(
                f"{train_data}: shards need --val-data with a pattern of .bin shards, and "
                "--tokenizer gpt2"
            )
    val = TokenStream.open(val_data or train_data, "val")
    require_tokenizer([*train.names, *val.names], made)
    return train, val, made
