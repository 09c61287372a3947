import os

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cs336_lib.data.loader import Loader
from cs336_lib.data.shards import (
    HEADER_BYTES,
    MAGIC,
    TokenStream,
    open_shard,
    write_shard,
)


def test_shard_round_trip(tmp_path):
    ids = np.array([0, 1, 50256, 65535], dtype=np.uint16)
    write_shard(tmp_path / "a.bin", ids)
    assert np.array_equal(open_shard(tmp_path / "a.bin"), ids)
    header = np.fromfile(tmp_path / "a.bin", dtype=np.int32, count=256)
    assert header[:3].tolist() == [20240520, 1, 4]  # llm.c's
    assert not header[3:].any()


INT32 = st.integers(-(2**31), 2**31 - 1)
HEADERS = st.tuples(
    st.sampled_from([MAGIC, MAGIC + 1, 20240801, 0]) | INT32,
    st.sampled_from([1, 2, 7]) | INT32,
    st.integers(0, 20) | INT32,
)


@settings(max_examples=200)
@given(HEADERS, st.binary(max_size=40), st.integers(0, HEADER_BYTES))
@example((MAGIC, 1, 3), b"\1\0\2\0\3\0", 0)
@example((MAGIC, 1, 3), b"\1\0\2\0\3", 0)
@example((MAGIC, 1, 3), b"\1\0\2\0\3\0\4\0", 0)
@example((MAGIC, 1, 0), b"", 0)
def test_a_shard_is_read_as_it_is_or_refused(tmp_path, header, body, missing):
    path = tmp_path / "train_0.bin"
    numbers = np.zeros(256, dtype="<i4")
    numbers[:3] = header
    path.write_bytes((numbers.tobytes() + body)[missing:])
    is_whole = header == (MAGIC, 1, len(body) // 2) and len(body) % 2 == 0 and missing == 0
    if not is_whole:
        with pytest.raises(ValueError, match="train_0") as error:
            TokenStream.open(str(path))
        assert "\n" not in str(error.value)
        return
    stream = TokenStream.open(str(path))
    assert stream.read(0, len(stream)).tolist() == np.frombuffer(body, dtype="<u2").tolist()


def test_a_shard_that_shrinks_or_goes_is_noticed(tmp_path):
    path = tmp_path / "train_0.bin"
    write_shard(path, np.arange(1000))
    loader = Loader(TokenStream.open(str(path)), 9, 1000, seed=0)
    before = loader.batch(0, 50)
    os.truncate(path, HEADER_BYTES + 100)
    with pytest.raises(ValueError, match="has become shorter"):
        loader.batch(0, 50)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        loader.batch(0, 50)
    write_shard(path, np.arange(1000))
    assert torch.equal(loader.batch(0, 50)[0], before[0])


def test_a_folder_with_other_names_asks_for_patterns(tmp_path):
    write_shard(tmp_path / "fineweb_train_000001.bin", np.arange(10))
    with pytest.raises(FileNotFoundError, match="by one pattern in --train-data and one"):
        TokenStream.open(str(tmp_path), "train")


def test_a_fingerprint_sees_every_token_of_small_data_and_no_cut():
    def of(*parts):
        return TokenStream(parts, [""] * len(parts)).fingerprint()

    for length in (1, 4097, 20_000):
        ids = np.random.default_rng(0).integers(0, 50, length).astype(np.uint16)
        expected = of(ids)
        assert expected["tokens"] == length
        assert of(*np.array_split(ids, 3)) == expected
        for place in {0, length // 3, length // 2, length - 1}:
            other = ids.copy()
            other[place] += 1
            assert of(other) != expected, place
        assert of(ids[:-1]) != expected
