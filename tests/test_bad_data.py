"""Bad shards and bad texts: one clear line, or handled; never a silent wrong batch."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cs336_lib import cli
from cs336_lib.data import documents
from cs336_lib.data.documents import Corpus, Place, read, text_pieces
from cs336_lib.data.loader import Loader, open_data
from cs336_lib.data.prepare import prepare, prepare_raw
from cs336_lib.data.shards import HEADER_BYTES, MAGIC, TokenStream, write_shard
from cs336_lib.data.tokenizer import GPT2Tokenizer, load_tokenizer
from cs336_lib.distributed import World

MANY = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def one_line(error: pytest.ExceptionInfo[ValueError], path: Path) -> bool:
    """Whether an error says where, in one line."""
    return str(path) in str(error.value) and "\n" not in str(error.value)


# --- shards

INT32 = st.integers(-(2**31), 2**31 - 1)
HEADERS = st.tuples(
    st.sampled_from([MAGIC, MAGIC + 1, 20240801, 0]) | INT32,
    st.sampled_from([1, 2, 7]) | INT32,
    st.integers(0, 20) | INT32,
)


@MANY
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
            TokenStream.from_pattern(str(path))
        assert one_line(error, path)
        return
    stream = TokenStream.from_pattern(str(path))
    assert stream.read(0, len(stream)).tolist() == np.frombuffer(body, dtype="<u2").tolist()


@MANY
@given(
    st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 61),
    st.integers(0, 100),
)
def test_a_batch_is_what_the_files_hold_or_names_the_first_bad_id(
    tmp_path, parts, block_size, vocab_size, first
):
    """Among the parts are empty ones and such of one token."""
    folder = tmp_path / "shards"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, ids in enumerate(parts):
        write_shard(folder / f"{number}.bin", np.array(ids, dtype=np.uint16))
    everything = [token for ids in parts for token in ids]
    stream = TokenStream.from_pattern(str(folder / "*.bin"))
    if len(everything) <= block_size:
        with pytest.raises(ValueError, match="tokens, but one sequence takes") as error:
            Loader(stream, block_size, vocab_size, seed=0)
        assert one_line(error, folder)
        return
    loader = Loader(stream, block_size, vocab_size, seed=0)
    starts = loader.starts(first, 4)
    rows = [everything[start : start + block_size + 1] for start in starts]
    if all(token < vocab_size for row in rows for token in row):
        x, y = loader.batch(first, 4)
        assert x.tolist() == [row[:-1] for row in rows]
        assert y.tolist() == [row[1:] for row in rows]
        return
    with pytest.raises(ValueError, match="the vocabulary has") as error:
        loader.batch(first, 4)
    assert one_line(error, folder)
    place = str(error.value).removeprefix(f"{folder}/")
    part, position = int(place[0]), int(place.split("token ")[1].split(":")[0])
    assert parts[part][position] >= vocab_size


@MANY
@given(st.data())
def test_the_same_batches_however_they_are_asked_for(data):
    """Any number of processes, any micro-batch, begun anew at any step, from any cut into files."""
    block_size = data.draw(st.integers(1, 6))
    ids = np.arange(block_size + data.draw(st.integers(1, 60)), dtype=np.uint16)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3)))
    seed, windows = data.draw(st.integers(0, 2**40)), data.draw(st.integers(1, 8))

    def loader(parts: list[np.ndarray]) -> Loader:
        names = [str(number) for number in range(len(parts))]
        return Loader(TokenStream(parts, names), block_size, len(ids), seed)

    def steps(made: Loader, first: int, last: int, size: int, micro: int) -> list[torch.Tensor]:
        """Each step's inputs and targets, put together from what the ranks read."""
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


@MANY
@given(st.integers(1, 7), st.integers(1, 80), st.integers(0, 2**40), st.integers(0, 3))
def test_every_full_window_once_an_epoch(block_size, extra, seed, epoch):
    """Read through the loader, batch by batch; an epoch's windows share their offset."""
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


def test_a_shard_that_shrinks_or_goes_is_noticed(tmp_path):
    path = tmp_path / "train_0.bin"
    write_shard(path, np.arange(1000))
    loader = Loader(TokenStream.from_pattern(str(path)), 9, 1000, seed=0)
    before = loader.batch(0, 50)
    os.truncate(path, HEADER_BYTES + 100)
    with pytest.raises(ValueError, match="has become shorter"):
        loader.batch(0, 50)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        loader.batch(0, 50)
    write_shard(path, np.arange(1000))
    assert torch.equal(loader.batch(0, 50)[0], before[0])


@pytest.mark.parametrize(
    "content",
    [
        b"To be, or not to be, that is the question." * 40,
        bytes(4000),
        (np.arange(3000) % 65).astype("<u2").tobytes(),  # nanoGPT's characters
        bytes(3001),
        b"\xff" * 4000,
    ],
    ids=["text", "zeros", "characters", "odd", "65535"],
)
def test_what_is_no_raw_file_of_gpt2s(content, tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="train") as error:
        prepare_raw((path,), tmp_path / "out")
    assert one_line(error, path)
    assert [p.name for p in tmp_path.iterdir()] == ["train.bin"]


# --- texts


def expected_text(content: bytes) -> str | None:
    """A text file's text as it should be read; None: it should be refused."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.replace("\r\n", "\n").replace("\r", "\n")


BYTES = st.binary(max_size=200) | st.text(max_size=100).map(
    lambda text: text.encode(errors="surrogatepass")
)


@pytest.mark.parametrize("tokenizer", ["gpt2", "char"])
@MANY
@given(content=BYTES)
@example(content=b"a\r\nb\rc\n\r\n" * 9)
@example(content=b"\xef\xbb\xbfwith a byte order mark, twice \xef\xbb\xbf")
@example(content="UTF-16, with a byte order mark".encode("utf-16"))
@example(content=b"a NUL\0 in the middle of a text")
@example(content=b"cut off in a character \xe2\x82")
@example(content=b"half a surrogate pair \xed\xa0\x80")
@example(content=b" " * 100)
@example(content=b"\n")
@example(content=b"x")
@example(content=b"")
@example(content="🎭".encode() * 20)
def test_a_text_comes_back_or_is_refused(tmp_path, tokenizer, content):
    path, out = tmp_path / "text.txt", tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    path.write_bytes(content)
    text = expected_text(content)
    try:
        counts = prepare(path, out, tokenizer, 0.5)
    except ValueError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith(str(path)) or "text is empty" in message
        assert text is None or len(text) < 4 or "more text needed" in message
        assert [p.name for p in tmp_path.iterdir()] == ["text.txt"]
        return
    made = load_tokenizer(out / "tokenizer.json")
    parts = [TokenStream.from_folder(out, part) for part in ("train", "val")]
    ids = [part.read(0, counts[name]).tolist() for name, part in zip(counts, parts, strict=True)]
    assert made.decode(ids[0] + ids[1]) == text


ROWS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=5,
)
LINES = st.lists(
    st.text(max_size=8).map(lambda text: json.dumps({"text": text}).encode())
    | st.builds(lambda row: json.dumps(row).encode(), ROWS)
    | st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")),
    min_size=1,
    max_size=6,
)


@MANY
@given(LINES)
@example([b'{"text": "half a pair: \\ud800!"}'])
@example([b'{"text": "NUL: \\u0000"}'])
@example([b"[" * 100_000])
@example([b'{"text": ["a"]}'])
@example([b'{"text": 1e999}'])
@example([b'{"text": "a"} {"text": "b"}'])
@example([b'{"text": "first", "text": "last"}'])
def test_json_lines_come_back_or_the_first_bad_one_is_named(tmp_path, lines):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(lines))
    found: list[str] = []
    try:
        found += (text for _, text in read(Corpus((path,)), Place()))
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"{path}, line ")
        assert "\n" not in message
        number = int(message.removeprefix(f"{path}, line ").split(":")[0])
        lines = lines[: number - 1]  # those before it are good
    texts = [json.loads(line)["text"] for line in lines if line.strip()]
    clean = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    assert len([text for text in clean if text]) >= len(found)
    assert found == [text for text in clean if text][: len(found)]
    for text in found:
        assert GPT2Tokenizer().decode(GPT2Tokenizer().encode(text).tolist()) == text


@pytest.mark.parametrize("piece", [b"a", b" ", b"\xe6\x97\xa5", b"lorem ipsum "])
def test_a_long_line_is_read_in_pieces(tmp_path, flat_memory, piece):
    path = tmp_path / "line.txt"
    times = 64 * 2**20 // len(piece)
    with open(path, "wb") as file:
        for _ in range(64):
            file.write(piece * (times // 64))
    size = 0
    for text in text_pieces(path):
        assert len(text) <= documents.LONGEST_WORD + documents.PIECE_BYTES
        size += len(text.encode())
    assert size == path.stat().st_size


def test_a_giant_row_is_refused_before_it_is_read(tmp_path, flat_memory):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "fine"}\n')
    os.truncate(path, 2**33)  # a line of 8 GB of holes
    rows = read(Corpus((path,)), Place())
    assert next(rows)[1] == "fine"
    with pytest.raises(ValueError, match="line 2: 67,108,864 bytes or more") as error:
        next(rows)
    assert one_line(error, path)
    text = tmp_path / "text.txt"
    text.touch()
    os.truncate(text, 2**33)
    with pytest.raises(ValueError, match="holds NUL bytes"):
        prepare(text, tmp_path / "out", "char")


def test_bad_data_on_the_command_line(tmp_path, capsys, monkeypatch):
    """A run on a folder whose shards do not fit its tokenizer stops with the place."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("To be, or not to be: " * 100)
    cli.main("prepare text.txt --out data --tokenizer char".split())
    made = load_tokenizer(Path("data/tokenizer.json"))
    ids = np.zeros(200, dtype=np.uint16)
    ids[77] = made.vocab_size
    write_shard(Path("data/train_000000.bin"), ids)
    capsys.readouterr()
    command = "train shakespeare-char --train-data data --run-dir run --device cpu --n-layer 1 "
    command += "--n-embd 8 --n-head 1 --block-size 8 --batch-tokens 512 --max-steps 3 "
    command += "--warmup-steps 1 --eval-tokens 64"
    with pytest.raises(SystemExit) as ended:
        cli.main(command.split())
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert f"data/train_000000.bin, token 77: id {made.vocab_size}" in said
    open_data("data", "", "char")  # whose own shards are whole
