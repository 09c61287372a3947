import json
import re
import sys
from collections import deque

import numpy as np
import pytest

from cs336_lib.data import documents
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.documents import (
    MARK_ROWS,
    Corpus,
    Mark,
    Place,
    check_files,
    json_lines,
    last_mark,
    read,
    text_pieces,
)
from cs336_lib.data.tokenizer import GPT2Tokenizer

ODD = "  \n\n a\tb  c\r\n\r\rd'll it's\u2028 x\x1c y\u00a0z 漢字 \U0001f600\n" + " " * 50 + "\n\n"


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(corpus, after=None):
    return [text for _, text in read(corpus, after or Place())]


def test_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n")
    assert "".join(text_pieces(path)) == "one\ntwo\nthree\n"


@pytest.mark.parametrize("size", [1, 3, 7, 64, 1000])
def test_pieces_have_the_tokens_of_the_whole(tmp_path, monkeypatch, size):
    monkeypatch.setattr(documents, "PIECE_BYTES", size)
    text = ODD + shakespeare()[:2000] + ODD * 3 + "x" * 200 + ODD
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    pieces = list(text_pieces(path))
    whole = text.replace("\r\n", "\n").replace("\r", "\n")
    assert "".join(pieces) == whole
    assert len([p for p in pieces if p]) > 1
    encode = GPT2Tokenizer().encode
    assert np.concatenate([encode(p) for p in pieces]).tolist() == encode(whole).tolist()


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"])
def test_the_byte_that_is_not_utf8_is_named(tmp_path, monkeypatch, size, before):
    monkeypatch.setattr(documents, "PIECE_BYTES", size)
    path = tmp_path / "latin.txt"
    path.write_bytes(before + b"some caf\xe9 au lait")
    with pytest.raises(ValueError, match=rf"not UTF-8 text \(byte {8 + len(before)} is 0xe9\)"):
        list(text_pieces(path))
    path.write_bytes(before + "some café".encode()[:-1])
    with pytest.raises(ValueError, match=rf"byte {8 + len(before)} is 0xc3"):
        list(text_pieces(path))


def test_documents_of_several_files_in_order_from_any_place(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_BYTES", 4)
    plain = tmp_path / "a.txt"
    plain.write_text("one two three")
    rows = [{"text": "four"}, {"text": ""}, {"text": "five"}]
    lines = write_lines(tmp_path / "b.jsonl", rows)
    lines.write_text(lines.read_text().replace("\n", "\n\n"))  # blank lines are none
    corpus = Corpus((plain, lines, plain))
    found = list(read(corpus, Place()))
    assert "|".join(text for _, text in found) == "one| two| three|four|five|one| two| three"
    assert [place.document for place, _ in found] == [0, 0, 0, 1, 3, 4, 4, 4]
    assert [place.piece for place, _ in found] == [0, 1, 2, 0, 0, 0, 1, 2]
    for number, (place, _) in enumerate(found):
        assert list(read(corpus, place)) == found[number + 1 :]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: list, a JSON object"),
        ('{"body": "x"}', "line 2: no field 'text' among body; name one with --text-field"),
        ('{"text": null}', "line 2: 'text' is NoneType, a string expected"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=message) as error:
        texts(Corpus((path,)))
    assert str(path) in str(error.value)


def test_another_field(tmp_path):
    path = write_lines(tmp_path / "rows.ndjson", [{"body": "x", "text": "y"}])
    assert texts(Corpus((path,), text_field="body")) == ["x"]
    assert [row for _, row in json_lines(path)] == [{"body": "x", "text": "y"}]


@pytest.mark.parametrize("name", ["rows.JSONL", "rows.Ndjson"])
def test_an_ending_in_capitals_is_the_same(tmp_path, name):
    corpus = Corpus((write_lines(tmp_path / name, [{"text": "x"}, {"text": "y"}]),))
    assert texts(corpus) == ["x", "y"]
    assert not corpus.is_one_text


def test_parquet_in_capitals(tmp_path):
    path = tmp_path / "rows.PARQUET"
    path.write_text("not parquet at all")
    with pytest.raises(ValueError, match=r"not a parquet file|package pyarrow"):
        texts(Corpus((path,)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("docs.json", "one JSON object a line in a .jsonl file expected, so rename or convert it"),
        ("docs.JSON", "one JSON object a line in a .jsonl file expected, so rename or convert it"),
        ("docs.jsonl.gz", "compressed; unpack it first"),
        ("docs.txt.zst", "compressed; unpack it first"),
        ("docs.xz", "compressed; unpack it first"),
        ("docs.BZ2", "compressed; unpack it first"),
        ("docs.zip", "compressed; unpack it first"),
    ],
)
def test_a_kind_that_is_neither_prose_nor_documents(tmp_path, name, message):
    (tmp_path / name).write_text('{"text": "x"}')
    with pytest.raises(ValueError, match=f"{re.escape(name)}: .*{re.escape(message)}$"):
        check_files(Corpus((tmp_path / name,)))


def test_what_is_named(tmp_path):
    with pytest.raises(ValueError, match="name text, JSON lines or parquet files"):
        check_files(Corpus())
    with pytest.raises(ValueError, match="or else one data set"):
        check_files(Corpus((tmp_path,), hub="a/b"))
    with pytest.raises(ValueError, match="is a folder; name the files"):
        check_files(Corpus((tmp_path,)))
    with pytest.raises(ValueError, match="no such file"):
        check_files(Corpus((tmp_path / "missing.jsonl",)))
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt: the file is empty"):
        check_files(Corpus((tmp_path / "empty.txt",)))


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    words = [f"word {i}" for i in range(1000)]
    table = pyarrow.table({"text": words, "id": range(1000)})
    parquet.write_table(table, path, row_group_size=300)
    found = list(read(Corpus((path, path)), Place()))
    assert [text for _, text in found] == words * 2
    for number in (0, 298, 299, 300, 301, 999, 1000, 1999):
        assert list(read(Corpus((path, path)), found[number][0])) == found[number + 1 :]
    with pytest.raises(ValueError, match="no field 'body' among text, id"):
        texts(Corpus((path,), text_field="body"))
    with pytest.raises(ValueError, match="row 1: 'id' is int, a string expected"):
        texts(Corpus((path,), text_field="id"))
    path.write_text("not parquet at all")
    with pytest.raises(ValueError, match="not a parquet file") as error:
        texts(Corpus((path,)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("package", ["pyarrow", "datasets"])
def test_a_missing_package_is_one_line(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "rows.parquet"
    path.touch()
    corpus = Corpus((path,)) if package == "pyarrow" else Corpus(hub="some/data")
    with pytest.raises(ValueError, match=f"the package {package}; pip install {package}"):
        texts(corpus)


class Hub:
    """Stands in for the package `datasets`: two rows, then perhaps a broken connection."""

    def __init__(self, broken=None):
        self.broken = broken

    def load_dataset(self, name, config, *, split, streaming):
        if (name, config, split, streaming) != ("some/data", "small", "train", True):
            raise ConnectionError(f"Couldn't reach {name!r}\nand a long explanation")
        return self

    def __iter__(self):
        yield from [{"text": "one"}, {"text": "two"}]
        if self.broken:
            raise self.broken


def test_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", Hub())
    corpus = Corpus(hub="some/data", hub_config="small")
    found = list(read(corpus, Place()))
    assert [text for _, text in found] == ["one", "two"]
    assert list(read(corpus, found[0][0])) == found[1:]
    with pytest.raises(ValueError, match="cannot be read from the Hugging Face hub") as error:
        texts(Corpus(hub="misspelt/data"))
    assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "datasets", Hub(RuntimeError("gone")))
    with pytest.raises(OSError, match=r"reading stopped at row 3 \(RuntimeError: gone\)"):
        texts(corpus)


@pytest.fixture
def hub_of_files(tmp_path, monkeypatch):
    """A local folder in the place of the hub's data set some/data: 3 files of 700 rows."""
    datasets = pytest.importorskip("datasets")
    for number in range(3):
        rows = [{"text": f"{number} {row}"} for row in range(700)]
        write_lines(tmp_path / f"part{number}.jsonl", rows)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    load = datasets.load_dataset

    def load_dataset(name, config, **how):
        assert name == "some/data"
        return load("json", data_files=[str(p) for p in sorted(tmp_path.glob("*.jsonl"))], **how)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return Corpus(hub="some/data")


@pytest.mark.parametrize("at", [0, 5, 699, 700, 1499, 1500, 2098])
def test_the_real_stream_continues_at_its_mark(hub_of_files, at):
    marks = deque()
    stream = read(hub_of_files, Place(), marks)
    found = [next(stream) for _ in range(at + 1)]
    saved = json.loads(json.dumps(last_mark(marks, found[-1][0].row)))
    assert saved is None or at - MARK_ROWS <= saved[0] <= at
    again = deque([Mark(*saved)] if saved else [])
    after = list(read(hub_of_files, found[-1][0], again))
    assert [*found, *after] == list(read(hub_of_files, Place()))
