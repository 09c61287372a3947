import json
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cs336_lib import cli
from cs336_lib.data import documents
from cs336_lib.data import prepare as module
from cs336_lib.data.documents import Corpus, Place
from cs336_lib.data.loader import open_data
from cs336_lib.data.prepare import batched, encode_batch, is_validation, prepare
from cs336_lib.data.shards import TokenStream, open_raw_shard, open_shard, write_shard
from cs336_lib.data.tokenizer import GPT2Tokenizer, load_tokenizer
from cs336_lib.io import locked
from tests.faults import Killed, watching

TEXT = "Mary had a little lamb,\nits fleece was white as snow.\n" * 50


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "lamb.txt"
    path.write_text(TEXT)
    return path


def test_the_text_comes_back(text_file, tmp_path):
    for name in ("gpt2", "char"):
        out = tmp_path / name / "prepared"
        counts = prepare(text_file, out, name, val_fraction=0.2)
        tokenizer = load_tokenizer(out / "tokenizer.json")
        train, val = (open_shard(out / f"{part}_000000.bin") for part in ("train", "val"))
        assert tokenizer.decode([*train.tolist(), *val.tolist()]) == TEXT
        assert counts == {"train": len(train), "val": len(val)}
        assert len(val) / (len(train) + len(val)) == pytest.approx(0.2, abs=0.01)
        assert sorted(p.name for p in out.parent.iterdir()) == ["prepared"]
        streams = open_data(str(out), "", name)
        assert [len(stream) for stream in streams[:2]] == [len(train), len(val)]


END = GPT2Tokenizer.end_of_text
WORDS = [f"Document {i}: {'so it goes ' * (i % 7)}on.\n" for i in range(60)]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": words}) + "\n" for words in WORDS))
    return Corpus((path,))


@pytest.fixture
def small_pieces(monkeypatch):
    """Many pieces and batches where there is little text."""
    monkeypatch.setattr(documents, "PIECE", 64)
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 150)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tokens(folder, part):
    return np.concatenate([open_shard(path) for path in sorted(folder.glob(f"{part}_*.bin"))])


def test_rows_without_a_text_are_skipped_and_counted(tmp_path, capsys):
    lines = [json.dumps({"text": words}) for words in WORDS]
    (tmp_path / "clean.jsonl").write_text("\n".join([*lines[:7], '{"text": ""}', *lines[7:]]))
    (tmp_path / "rows.jsonl").write_text("\n".join([*lines[:7], '{"text": null}', *lines[7:]]))
    for tokenizer in ("gpt2", "char"):
        for name in ("clean", "rows"):
            prepare(Corpus((tmp_path / f"{name}.jsonl",)), tmp_path / tokenizer / name, tokenizer)
        said = capsys.readouterr().err
        assert said.count("without a text") == 1
        assert "rows: 1 rows without a text were skipped (first: " in said
        assert "rows.jsonl, line 8)" in said
        assert contents(tmp_path / tokenizer / "clean") == contents(tmp_path / tokenizer / "rows")
    (tmp_path / "nulls.jsonl").write_text('{"text": null}\n' * 3)
    with pytest.raises(ValueError, match="more text needed; 3 rows without a text were skipped"):
        prepare(tmp_path / "nulls.jsonl", tmp_path / "nulls")


def test_shards_are_full_and_hold_the_same(corpus, text_file, tmp_path, small_pieces):
    for shard_tokens, source in ((7, corpus), (451, text_file)):
        folder = tmp_path / str(shard_tokens)
        prepare(source, folder / "whole", val_fraction=0.2)
        prepare(source, folder / "cut", val_fraction=0.2, shard_tokens=shard_tokens)
        for part in ("train", "val"):
            shards = [open_shard(path) for path in sorted((folder / "cut").glob(f"{part}_*.bin"))]
            assert {len(shard) for shard in shards[:-1]} <= {shard_tokens}
            assert 0 < len(shards[-1]) <= shard_tokens
            whole = tokens(folder / "whole", part)
            assert np.concatenate(shards).tolist() == whole.tolist()
        streams = open_data(str(folder / "cut"), "", "gpt2")
        assert all(isinstance(stream, TokenStream) for stream in streams[:2])


class Stream:
    """A data set of the hub as `datasets` streams it: its rows, then an error if one is given."""

    def __init__(self, error=None):
        self.error, self.first, self.sent = error, 0, []

    def __iter__(self):
        for row in range(self.first, len(WORDS)):
            self.sent.append(row)
            yield {"text": WORDS[row]}
        if self.error:
            raise self.error

    def state_dict(self):
        return {"next": {"row": self.first + len(self.sent)}}

    def load_state_dict(self, state):
        self.first = state["next"]["row"]


def test_what_is_done_stays_where_the_hub_cannot_be_reached(
    tmp_path, small_pieces, monkeypatch, capsys
):
    def datasets(load):
        monkeypatch.setitem(sys.modules, "datasets", load and SimpleNamespace(load_dataset=load))

    def offline(*_, **__):
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    corpus, out = Corpus(hub="x/y"), tmp_path / "out"
    datasets(lambda *_, **__: Stream(RuntimeError("connection lost")))
    with pytest.raises(OSError, match="connection lost"):
        prepare(corpus, out, workers=1)
    before = contents(tmp_path / ".tmp-out")
    assert "progress.json" in before
    kept = r"tmp-out keeps the progress, and the same command resumes from there$"
    for load, message in ((offline, "cannot be read from the"), (None, "package datasets")):
        datasets(load)
        with pytest.raises(ValueError, match=f"{message}.*{kept}"):
            prepare(corpus, out, workers=1)
        assert contents(tmp_path / ".tmp-out") == before
    datasets(lambda *_, **__: Stream())
    prepare(corpus, out, workers=1)
    assert capsys.readouterr().err.count("resuming after") == 3
    prepare(corpus, tmp_path / "whole", workers=1)
    assert contents(out) == contents(tmp_path / "whole")


def test_what_is_done_stays_where_a_late_row_is_bad(corpus, tmp_path, small_pieces, monkeypatch):
    with open(corpus.paths[0], "a") as file:
        file.write('{"body": "x"}\n')
    with pytest.raises(ValueError, match=r"line 61: no field 'text' among body; .*--text-field$"):
        prepare(corpus, tmp_path / "out", workers=1)
    assert not (tmp_path / ".tmp-out").exists()  # nothing was saved yet
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"line 61: .*tmp-out keeps the progress"):
            prepare(corpus, tmp_path / "out", workers=1)
        assert (tmp_path / ".tmp-out" / "progress.json").exists()


def test_two_runs_do_not_share_a_folder(corpus, raw_file, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "locked", partial(locked, timeout=0))
    out, temporary = tmp_path / "out", tmp_path / ".tmp-out"
    temporary.mkdir()
    (temporary / "train_000000.bin").write_text("what the first has written")
    before = contents(temporary)
    with locked(tmp_path / ".out.lock"):  # as the first run, from whatever process
        for second in (partial(prepare, corpus), partial(prepare, raw(raw_file))):
            with pytest.raises(ValueError, match="another process holds this lock; wait"):
                second(out)
            assert contents(temporary) == before
    prepare(corpus, out)
    assert sorted(contents(out)) == ["tokenizer.json", "train_000000.bin", "val_000000.bin"]


@pytest.fixture
def raw_file(tmp_path):
    path = tmp_path / "train.bin"
    (np.arange(1000) * 50).astype("<u2").tofile(path)
    return path


def raw(*paths):
    return Corpus(paths, raw=True)


def test_raw_tokens(raw_file, tmp_path):
    ids = open_raw_shard(raw_file)
    assert ids.tolist() == (np.arange(1000) * 50).tolist()
    counts = prepare(raw(raw_file), tmp_path / "out", shard_tokens=300)
    assert counts == {"train": 900, "val": 100}
    both = np.concatenate([tokens(tmp_path / "out", part) for part in ("train", "val")])
    assert both.tolist() == ids.tolist()
    assert len(list((tmp_path / "out").glob("train_*.bin"))) == 3
    assert load_tokenizer(tmp_path / "out" / "tokenizer.json").name == "gpt2"
    val = tmp_path / "val.bin"
    np.arange(10).astype("<u2").tofile(val)
    assert prepare(raw(raw_file, val), tmp_path / "two") == {"train": 1000, "val": 10}
    assert tokens(tmp_path / "two", "val").tolist() == list(range(10))


def test_what_is_no_raw_file(raw_file, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="3 files; --raw takes one, or"):
        prepare(raw(*[raw_file] * 3), out)
    np.array([1, 60000, 2, 3]).astype("<u2").tofile(raw_file)
    with pytest.raises(ValueError, match="id 60000, but GPT-2's vocabulary has 50257"):
        prepare(raw(raw_file), out, val_fraction=0.5)
    write_shard(raw_file, np.arange(10))
    with pytest.raises(ValueError, match=r"an llm\.c shard already"):
        prepare(raw(raw_file), out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.bin"]


def test_the_command_line(corpus, raw_file, tmp_path, capsys):
    def run(*arguments):
        cli.main(["prepare", *(str(argument) for argument in arguments)])
        return capsys.readouterr().out

    out = run(*corpus.paths, "--out", tmp_path / "a", "--shard-tokens", 100, "--workers", 1)
    assert "tokens to train on" in out
    assert len(list((tmp_path / "a").glob("train_*.bin"))) > 1
    assert "900 tokens to train on, 100 to validate" in run(
        raw_file, "--raw", "--out", tmp_path / "b"
    )
    for arguments in (
        [raw_file, "--raw", "--tokenizer", "char"],
        [raw_file, "--raw", "--hub", "some/data"],
        [raw_file, "--hub", "some/data"],
        [],
    ):
        with pytest.raises(SystemExit):
            run(*arguments, "--out", tmp_path / "c")
        assert capsys.readouterr().err.count("\n") == 1


PIECES = [(Place(i // 2, i % 2), f"piece {i} of a text\n") for i in range(400)]


def test_the_fraction_holds_at_every_length():
    for fraction in (0.001, 0.15, 1 / 3, 0.9):
        chosen = np.cumsum([is_validation(i, fraction) for i in range(3000)])
        expected = fraction * np.arange(1, 3001)
        assert np.abs(chosen - expected).max() < 2, fraction


def test_batches_and_separators(monkeypatch):
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 50)
    batches = list(batched(PIECES))
    assert [piece for batch in batches for piece in batch] == PIECES
    assert max(len(batch) for batch in batches) == 3
    found = [encode_batch(GPT2Tokenizer(), 50256, 0.1, batch) for batch in batches]
    train, val = (np.concatenate(part) for part in list(zip(*found, strict=True))[:2])
    assert (train == 50256).sum() == 180
    assert (val == 50256).sum() == 20
    text = GPT2Tokenizer().decode(val.tolist())
    documents = text.split("<|endoftext|>")[1:]
    assert all(d.count("piece") == 2 for d in documents)
    assert [batch[-1][0] for batch in batches] == [place for *_, place in found]


def test_preparing_does_not_load_torch():
    code = "import sys, cs336_lib.data.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
@settings(max_examples=100)
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
        assert message.startswith((str(path), str(out))) or "text is empty" in message
        assert text is None or len(text) < 4 or "more text needed" in message
        assert [p.name for p in tmp_path.iterdir()] == ["text.txt"]
        return
    made = load_tokenizer(out / "tokenizer.json")
    parts = [TokenStream.open(str(out), part) for part in ("train", "val")]
    ids = [part.read(0, counts[name]).tolist() for name, part in zip(counts, parts, strict=True)]
    assert made.decode(ids[0] + ids[1]) == text


def interrupted(corpus, tmp_path):
    """Kill a preparation, and return its temporary folder."""
    with pytest.raises(Killed), watching(tmp_path, 60):
        prepare(corpus, tmp_path / "out", workers=1)
    return tmp_path / ".tmp-out"


def test_only_the_same_command_goes_on_and_where_it_was(
    corpus, raw_file, tmp_path, small_pieces, monkeypatch, capsys
):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    temporary = interrupted(corpus, tmp_path)
    before = contents(temporary)
    kept = corpus.paths[0].read_text()
    for source, options, names in (
        (corpus, {"val_fraction": 0.2}, "val_fraction"),
        (corpus, {"shard_tokens": 99}, "shard_tokens"),
        (raw(raw_file), {}, "paths and raw"),
    ):
        with pytest.raises(ValueError, match=f"unfinished run with other {names}; give the same"):
            prepare(source, tmp_path / "out", **options)
    corpus.paths[0].write_text('{"text": "changed"}\n')
    with pytest.raises(ValueError, match="unfinished run with other paths"):
        prepare(corpus, tmp_path / "out")
    assert contents(temporary) == before
    corpus.paths[0].write_text(kept)
    temporary = interrupted(corpus, tmp_path / "again")
    saved = json.loads((temporary / "progress.json").read_text())
    places, read = [], module.read
    monkeypatch.setattr(module, "read", lambda *a: places.append(a[1]) or read(*a))
    prepare(corpus, tmp_path / "again" / "out", workers=1)
    assert places == [Place(*saved["place"])]
    assert places[0].document > 5
    assert f"resuming after {saved['train'] + saved['val']:,} tokens" in capsys.readouterr().err


def test_the_hub_is_not_streamed_again_from_its_beginning(tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    monkeypatch.setattr(documents, "MARK_ROWS", 4)
    streams = []
    load = lambda *_, **__: streams.append(Stream()) or streams[-1]  # noqa: E731
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    corpus = Corpus(hub="x/y")
    interrupted(corpus, tmp_path)
    prepare(corpus, tmp_path / "out", workers=1)
    first, second = streams
    assert 4 < second.sent[0] <= first.sent[-1]
    assert second.sent[-1] == len(WORDS) - 1
    prepare(corpus, tmp_path / "whole", workers=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
