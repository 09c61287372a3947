"""A text of one word of a gigabyte: prepared, in memory that does not grow with it."""

from pathlib import Path

from cs336_lib.data.prepare import prepare
from cs336_lib.data.tokenizer import load_tokenizer

GIGABYTE = 2**30


def test_a_line_of_a_gigabyte(tmp_path: Path, flat_memory: None):
    path, out = tmp_path / "line.txt", tmp_path / "out"
    with open(path, "wb") as file:
        for _ in range(GIGABYTE // 2**20):
            file.write(b"abcdefgh" * 2**17)
    counts = prepare(path, out, "char", 0.01, workers=1, shard_tokens=20_000_000)
    assert sum(counts.values()) == GIGABYTE
    assert load_tokenizer(out / "tokenizer.json").alphabet == "abcdefgh"
