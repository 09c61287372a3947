from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_lib.data.loader import Loader, open_data, prefetched
from cs336_lib.data.prepare import prepare
from cs336_lib.data.shards import TokenStream
from cs336_lib.system.processes import World

MANY = settings(max_examples=200)


def stream_of(*parts: int) -> TokenStream:
    """Return the stream 0, 1, 2, ... cut into parts of these lengths."""
    ids = np.arange(sum(parts), dtype=np.uint16)
    return TokenStream(
        np.split(ids, np.cumsum(parts)[:-1]), [f"part{i}" for i in range(len(parts))]
    )


@MANY
@given(st.integers(1, 7), st.integers(1, 80), st.integers(0, 2**40), st.integers(0, 3))
def test_every_full_window_once_an_epoch(block_size, extra, seed, epoch):
    tokens = block_size + extra
    stream = TokenStream([np.arange(tokens, dtype=np.uint16)], ["ids"])
    loader = Loader(stream, block_size, tokens, seed)
    seen: list[list[int]] = []  # of each epoch, where its windows began
    number = 0
    while len(seen) <= epoch:
        offset = int(loader.starts(number, 1)[0]) % block_size
        full = (tokens - 1 - offset) // block_size
        x, y = loader.batch(number, full)
        assert torch.equal(x + 1, y)  # the stream is 0, 1, 2, ...
        seen.append(sorted(x[:, 0].tolist()))
        assert seen[-1] == list(range(offset, offset + full * block_size, block_size))
        number += full


@MANY
@given(st.data())
def test_steps_are_the_same_for_any_world_size_restart_and_files(data):
    """Neither ranks, micro-batches, a restart nor the cut into files change a step's windows."""
    block_size = data.draw(st.integers(1, 6))
    ids = np.arange(block_size + data.draw(st.integers(1, 60)), dtype=np.uint16)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3)))
    seed, windows = data.draw(st.integers(0, 2**40)), data.draw(st.integers(1, 8))

    def loader(parts: list[np.ndarray]) -> Loader:
        names = [str(number) for number in range(len(parts))]
        return Loader(TokenStream(parts, names), block_size, len(ids), seed)

    def steps(made: Loader, first: int, last: int, size: int, micro: int) -> list[torch.Tensor]:
        """Return each step's inputs and targets, concatenated over all ranks."""
        read_by_all = []
        for step in range(first, last):
            pieces = [
                torch.stack(made.batch(step * windows + begin, count))
                for rank in range(size)
                for begin, count in World(rank=rank, size=size).pieces(windows, micro)
                if count > 0
            ]
            read_by_all.append(torch.cat(pieces, dim=1))
        return read_by_all

    expected = steps(loader([ids]), 0, 6, 1, windows)
    restart = data.draw(st.integers(0, 6))
    size, micro = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    found = steps(loader([ids]), 0, restart, size, micro)
    size, micro = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    found += steps(loader(np.split(ids, cuts)), restart, 6, size, micro)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_validation_windows_are_fixed_full_and_spread():
    loader = Loader(stream_of(1000), 10, 1000, seed=0)
    everything = loader.validation_starts(10**9)
    assert everything.tolist() == list(range(0, 990, 10))
    few = loader.validation_starts(50)
    assert len(few) == 5
    assert few[-1] >= 700


def test_prefetched_keeps_order_and_raises_what_the_reader_raised():
    batches = [(torch.tensor(i), torch.tensor(-i)) for i in range(5)]
    seen = [x.item() for x, _ in prefetched(batches, torch.device("cpu"))]
    assert seen == [0, 1, 2, 3, 4]

    def breaks():
        yield batches[0]
        raise ValueError("bad shard")

    with pytest.raises(ValueError, match="bad shard"):
        list(prefetched(breaks(), torch.device("cpu")))


@pytest.mark.parametrize(("kind", "pinned"), [("mps", False), ("cuda", True)])
def test_a_copy_that_nobody_waits_for_needs_pinned_memory(monkeypatch, kind, pinned):
    """The source of such a copy is freed in the next iteration."""
    batch = Loader(stream_of(1000), 10, 1000, seed=0).batch(0, 4)
    copies, memory = [], []  # keeps the pinned tensors, so that no other gets their identity

    def to(tensor, device, non_blocking=False):
        copies.append((device.type, non_blocking))
        return tensor

    def pin_memory(tensor):
        memory.append(tensor.clone())
        return memory[-1]

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: any(tensor is m for m in memory))
    list(prefetched([batch, batch], torch.device(kind)))
    assert copies == [(kind, pinned)] * 4
    assert len(memory) == 4 * pinned


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Folders da and db of equally many characters, but others, and dg of GPT-2's tokens."""
    monkeypatch.chdir(tmp_path)
    for name, letters in (("da", "abcdefgh "), ("db", "ijklmnop "), ("dg", "abcdefgh ")):
        Path("text.txt").write_text(letters * 400)
        prepare(Path("text.txt"), Path(name), "gpt2" if name == "dg" else "char")


def test_shards_of_another_tokenizer_are_refused(prepared):
    wrong = "pass --train-data, --val-data and --tokenizer that belong together"
    for arguments, message in (
        (("da/train_*.bin", "da/val_*.bin", "char"), "a pattern of .bin shards, and --tokenizer"),
        (("dg/train_*.bin", "d?/val_*.bin", "gpt2"), wrong),
        (("da", "db/val_*.bin", "char"), "db was prepared with tokenizer char with 9 ids ' ijkl"),
        (("da", "", "gpt2"), "was prepared with tokenizer 'char'.*pass --tokenizer char"),
        (("", "da/val_*.bin", "char"), "val_data without train_data"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            open_data(*arguments)
        assert "\n" not in str(error.value)
