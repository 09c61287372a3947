"""How many tokens a second the loader reads.

    python -m benchmarks.loader [--gigabytes 10]

Sparse shards stand for the data: the loader reads them as it reads any other. The last line,
`ratio R`, compares with nanoGPT's get_batch, rewritten here from its train.py (lines 116 to 131)
because it cannot be imported from there.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import numpy as np
import torch
import tyro

from benchmarks import common
from cs336_course.shared import stopwatch
from cs336_lib.config import UserError
from cs336_lib.data.loader import Loader
from cs336_lib.data.shards import HEADER_BYTES, TokenStream, write_shard

SHARD_TOKENS = 100_000_000


def sparse_shard(path: Path, tokens: int) -> None:
    """A shard whose header is real and whose tokens, all zero, take no room on the disk."""
    write_shard(path, np.zeros(1, dtype=np.uint16))
    header = np.fromfile(path, dtype=np.int32, count=HEADER_BYTES // 4)
    header[2] = tokens
    with open(path, "r+b") as file:
        file.write(header.tobytes())
        file.truncate(HEADER_BYTES + 2 * tokens)


def peer_batch(path: Path, block_size: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What nanoGPT's get_batch does: map the file anew, draw places, stack slices as int64."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    places = torch.randint(len(data) - block_size, (count,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in places])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in places]
    )
    return x, y


def main(gigabytes: float = 10, count: int = 16, block_size: int = 1024, rounds: int = 200) -> None:
    """Measure the loader.

    Args:
        gigabytes: size of the shards.
        count: sequences in a batch.
        block_size: tokens in a sequence.
        rounds: batches read.
    """
    with tempfile.TemporaryDirectory() as folder:
        shards = max(1, round(gigabytes * 1e9 / 2 / SHARD_TOKENS))
        for shard in range(shards):
            sparse_shard(Path(folder) / f"train_{shard:06d}.bin", SHARD_TOKENS)
        stream = TokenStream.open(f"{folder}/train_*.bin")
        loader = Loader(stream, block_size, 50257, 1337)
        peer_file = Path(folder) / "train_000000.bin"
        step = iter(range(1, 10**9))
        seconds = stopwatch.seconds_in_turns(
            {
                "ours": lambda: loader.batch(next(step) * count, count),
                "nanoGPT's way": lambda: peer_batch(peer_file, block_size, count),
            },
            torch.device("cpu"),
            rounds=rounds,
            warmup=10,
        )
    tokens = count * block_size
    rates = {name: tokens / statistics.median(values) for name, values in seconds.items()}
    ratio = common.ratio(seconds["nanoGPT's way"], seconds["ours"])
    print(
        f"{shards} shards, {shards * SHARD_TOKENS * 2 / 1e9:.0f} GB; batches of {tokens:,} tokens"
    )
    for name, rate in rates.items():
        print(f"{name:14} {rate:14,.0f} tok/s")
    result = {
        "machine": common.machine(torch.device("cpu")),
        "setup": {"shards": shards, "bytes": shards * SHARD_TOKENS * 2, "batch_tokens": tokens},
        "tokens_per_second": rates,
        "ratio": ratio,
    }
    print(common.write("loader", result))
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
