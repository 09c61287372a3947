from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_lib.data.loader import Loader, open_data, prefetched, shuffled, window_starts
from cs336_lib.data.shards import HEADER_BYTES, MAGIC, TokenStream, open_shard, write_shard
from cs336_lib.distributed import World


def stream_of(*parts: int) -> TokenStream:
    """Token streams 0, 1, 2, ... cut into parts of these lengths."""
    ids = np.arange(sum(parts), dtype=np.uint16)
    return TokenStream(
        np.split(ids, np.cumsum(parts)[:-1]), [f"part{i}" for i in range(len(parts))]
    )


def test_shard_round_trip(tmp_path):
    ids = np.array([0, 1, 50256, 65535], dtype=np.uint16)
    write_shard(tmp_path / "a.bin", ids)
    assert np.array_equal(open_shard(tmp_path / "a.bin"), ids)
    header = np.fromfile(tmp_path / "a.bin", dtype=np.int32, count=256)
    assert header[:3].tolist() == [20240520, 1, 4]  # llm.c's
    assert not header[3:].any()


def test_broken_shards_are_named(tmp_path):
    path = tmp_path / "a.bin"
    good = np.zeros(256, dtype="<i4")
    good[:3] = MAGIC, 1, 10
    header = good.tobytes()
    assert len(header) == HEADER_BYTES
    wrong_version, negative = good.copy(), good.copy()
    wrong_version[1], negative[2] = 2, -1
    cases = {
        b"": "shorter than a shard's header",
        b"\x00" * HEADER_BYTES: "magic number 0",
        wrong_version.tobytes(): "version 2",
        header + b"\x00" * 19: "promises 10 tokens",
        header + b"\x00" * 22: "promises 10 tokens",
        negative.tobytes(): "promises -1 tokens",
    }
    for content, message in cases.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            open_shard(path)
        assert str(path) in str(error.value)
    with pytest.raises(ValueError, match="no file matches"):
        TokenStream.from_pattern(str(tmp_path / "*.none"))


def test_reading_across_parts():
    stream = stream_of(3, 4, 1, 5)
    assert len(stream) == 13
    for start in range(13):
        for length in range(1, 14 - start):
            assert stream.read(start, length).tolist() == list(range(start, start + length))
    assert stream.where(3) == "part1, token 0"
    assert stream.where(12) == "part3, token 4"


@given(st.integers(1, 300), st.integers(0, 2**62))
def test_shuffled_is_a_bijection(n, key):
    assert sorted(shuffled(np.arange(n), n, key)) == list(range(n))


def test_shuffled_looks_shuffled():
    order = shuffled(np.arange(10_000), 10_000, key=1)
    assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.05
    assert not np.array_equal(order, shuffled(np.arange(10_000), 10_000, key=2))


def unevenness(order: np.ndarray, bins: int = 16) -> float:
    """Chi-square of the steps between places a power of two apart, for the worst such distance.

    A random order gives about 25. A Feistel network of one or two rounds gives thousands, because
    places that share half of their bits stay close together.
    """
    n, found = len(order), []
    for distance in 2 ** np.arange(int(n - 1).bit_length()):
        steps = (np.roll(order, -distance) - order) % n
        counts = np.bincount(steps * bins // n, minlength=bins)
        found.append(((counts - n / bins) ** 2).sum() / (n / bins))
    return max(found)


@pytest.mark.parametrize("n", [1000, 3000, 4096, 10_000, 65_536])
def test_steps_between_neighbours_are_as_even_as_a_random_orders(n):
    random = np.random.default_rng(n)
    measured = [unevenness(random.permutation(n)) for _ in range(15)]
    assert max(measured) < 100, "the measure itself"
    keys = random.integers(2**62, size=15)
    measured = [unevenness(shuffled(np.arange(n), n, int(key))) for key in keys]
    assert np.median(measured) < 100
    assert max(measured) < 1000  # four rounds on 4096 reach 580 once in a thousand keys


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 2**62), st.integers(0, 3))
def test_every_window_once_in_a_cycle(block_size, extra, seed, cycle):
    tokens = block_size + extra  # so there are `extra` different windows
    starts = window_starts(cycle * extra, extra, tokens, block_size, seed)
    assert sorted(starts) == list(range(extra))


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(20, 100), st.integers(0, 2**62))
def test_an_epoch_visits_every_full_window_of_its_offset_once(block_size, tokens, seed):
    n = (tokens - 1) // block_size
    first = window_starts(0, n + 1, tokens, block_size, seed)
    offset = first[0] % block_size
    epoch = [start for start in first if start % block_size == offset]
    full = (tokens - 1 - offset) // block_size
    assert sorted(epoch[:full]) == list(range(offset, offset + full * block_size, block_size))
    assert (first + block_size + 1 <= tokens).all()


@settings(deadline=None)
@given(st.data())
def test_a_batch_depends_on_nothing_but_how_many_came_before(data):
    block_size = data.draw(st.integers(1, 8))
    tokens = block_size + data.draw(st.integers(1, 50))
    first, count = data.draw(st.integers(0, 300)), data.draw(st.integers(1, 40))
    whole = window_starts(first, count, tokens, block_size, 5)
    world_size, micro = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    pieces = []
    for rank in range(world_size):
        mine = World(rank=rank, size=world_size).share(count)
        for begin in range(mine.start, mine.stop, micro):
            size = min(micro, mine.stop - begin)
            pieces.append(window_starts(first + begin, size, tokens, block_size, 5))
    assert np.array_equal(np.concatenate(pieces), whole)


def test_targets_are_the_inputs_shifted_by_one():
    x, y = Loader(stream_of(100), 9, 100, seed=1).batch(0, 8)
    assert x.shape == y.shape == (8, 9)
    assert x.dtype == torch.int64
    assert torch.equal(x + 1, y)  # the stream is 0, 1, 2, ...


def test_other_seed_other_order():
    stream = stream_of(1000)
    one, two = (Loader(stream, 9, 1000, seed).batch(0, 8)[0] for seed in (1, 2))
    assert not torch.equal(one, two)


def test_an_id_outside_the_vocabulary_is_found():
    loader = Loader(stream_of(20, 20), 4, vocab_size=30, seed=0)
    with pytest.raises(ValueError, match=r"part1, token \d+: id \d+, but the vocabulary has 30"):
        loader.batch(0, 36)


def test_too_little_data_for_one_window():
    with pytest.raises(ValueError, match="8 tokens, but one sequence takes block_size"):
        Loader(stream_of(8), 8, 100, seed=0)
    assert len(Loader(stream_of(9), 8, 100, seed=0).batch(0, 5)[0]) == 5


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


def test_prefetched_pins_contiguous_tensors(monkeypatch):
    batch = Loader(stream_of(1000), 10, 1000, seed=0).batch(0, 4)
    assert not batch[0].is_contiguous()  # CUDA copies a strided tensor through pageable memory
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
    (moved,) = prefetched([batch], torch.device("cuda"))
    assert [tensor.is_contiguous() for tensor in pinned] == [True, True]
    assert all(torch.equal(a, b) for a, b in zip(batch, moved, strict=True))


def test_the_corpus_splits_at_nine_tenths():
    train, val, tokenizer = open_data("", "", "char")
    assert abs(len(val) / (len(train) + len(val)) - 0.1) < 1e-5
    assert tokenizer.decode(train.read(0, 14).tolist()) == "First Citizen:"


def test_foreign_shards_want_the_gpt2_tokenizer(tmp_path):
    write_shard(tmp_path / "train.bin", np.arange(100))
    with pytest.raises(ValueError, match="--tokenizer gpt2"):
        open_data(str(tmp_path / "train.bin"), "", "char")
    with pytest.raises(ValueError, match="--val-data is missing"):
        open_data(str(tmp_path / "train.bin"), "", "gpt2")
    train, _, made = open_data(str(tmp_path / "train.bin"), str(tmp_path / "train.bin"), "gpt2")
    assert len(train) == 100
    assert made.name == "gpt2"


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Folders da and db of equally many characters, but others, and dg of GPT-2's tokens."""
    from cs336_lib.data.prepare import prepare

    monkeypatch.chdir(tmp_path)
    for name, letters in (("da", "abcdefgh "), ("db", "ijklmnop "), ("dg", "abcdefgh ")):
        Path("text.txt").write_text(letters * 400)
        prepare(Path("text.txt"), Path(name), "gpt2" if name == "dg" else "char")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("da/train_*.bin", "da/val_*.bin", "gpt2"), "pass --train-data da --tokenizer char"),
        (("da/train_*.bin", "da/val_*.bin", "char"), "pass --train-data da --tokenizer char"),
        (("da/train_000000.bin", "da/val_*.bin", "char"), "da was prepared with tokenizer 'char'"),
        (("dg/train_*.bin", "d?/val_*.bin", "gpt2"), "pass --val-data with shards of GPT-2's"),
        (("da", "db/val_*.bin", "char"), "db was prepared with another alphabet.*leave out"),
        (("da", "d*/val_*.bin", "char"), "db was prepared with another alphabet"),
        (("da", "dg/val_*.bin", "char"), "dg was prepared with tokenizer 'gpt2'"),
        (("dg", "da/val_*.bin", "gpt2"), "da was prepared with tokenizer 'char'"),
    ],
)
def test_shards_of_another_tokenizer_are_refused(prepared, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        open_data(*arguments)
    assert "\n" not in str(error.value)


def test_shards_of_the_same_tokenizer_are_read_by_a_pattern_too(prepared):
    open_data("dg/train_*.bin", "dg/val_*.bin", "gpt2")
    open_data("da", "da/val_*.bin", "char")
    (Path("dg") / "tokenizer.json").write_text('{"version": "1.0", "model": {}}')
    open_data("dg/train_*.bin", "dg/val_*.bin", "gpt2")  # Hugging Face's is none of our business


def test_a_folder_that_is_not_there_is_named_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("char", "gpt2"):
        with pytest.raises(ValueError, match="typo: no such folder or file") as error:
            open_data("typo", "", name)
        assert f"(looked in {tmp_path})" in str(error.value)
    with pytest.raises(ValueError, match="no file matches") as error:
        open_data("typo/*.bin", "", "gpt2")
    assert f"(looked in {tmp_path})" in str(error.value)
    with pytest.raises(ValueError, match=r"no such folder or file; `cs336 prepare`"):
        open_data(str(tmp_path / "typo"), "", "char")


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 20_000])
def test_a_fingerprint_sees_every_token_of_small_data_and_no_cut(length):
    ids = np.random.default_rng(0).integers(0, 50, length).astype(np.uint16)

    def of(*parts):
        return TokenStream(parts, [""] * len(parts)).fingerprint()

    whole = of(ids)
    assert whole["tokens"] == length
    assert of(*np.array_split(ids, 3)) == whole
    for place in {0, length // 3, length // 2, length - 1}:
        other = ids.copy()
        other[place] += 1
        assert of(other) != whole, place
    assert of(ids[:-1]) != whole


def test_a_fingerprint_of_large_data_reads_a_bounded_part_of_it():
    class Large:
        read = 0

        def __len__(self):
            return 10**10

        def __getitem__(self, wanted):
            Large.read += wanted.stop - wanted.start
            return np.arange(wanted.start, wanted.stop).astype(np.uint16)

    stream = TokenStream([Large()], ["large"])
    assert stream.fingerprint()["tokens"] == 10**10
    assert Large.read == 256 * 4096
