import json
import os

import numpy as np
import pytest

from cs336_lib.data import documents
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.documents import MARK_ROWS, Corpus, Position, read, text_pieces
from cs336_lib.data.tokenizer import GPT2Tokenizer
from tests.faults import little_memory

ODD = "  \n\n a\tb  c\r\n\r\rd'll it's\u2028 x\x1c y\u00a0z 漢字 \U0001f600\n" + " " * 50 + "\n\n"


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(corpus, after=None):
    return [text for _, text in read(corpus, after or Position())]


def test_pieces_have_the_tokens_of_the_complete_text(tmp_path, monkeypatch):
    text = ODD + shakespeare()[:2000] + ODD * 3 + "x" * 200 + ODD
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())  # with a byte order mark
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    encode = GPT2Tokenizer().encode
    for size in (1, 7, 64):
        monkeypatch.setattr(documents, "PIECE", size)
        pieces = list(text_pieces(path))
        assert "".join(pieces) == expected
        assert len([p for p in pieces if p]) > 1
        ids = np.concatenate([encode(p) for p in pieces])
        assert ids.tolist() == encode(expected).tolist()


def test_another_encoding_is_named_in_one_line(tmp_path):
    path = tmp_path / "text.txt"
    for content, said in (
        (b"caf\xe9", "0xe9 and may be cp1252 or cp1251"),
        ("Gru\u00df".encode("utf-16"), "0xff and may be UTF-16"),
        (
            "\u4f60\u597d\uff0c\u4e16\u754c".encode("gbk"),
            "0xc4 and may be cp1252 or cp1251 or gb18030",
        ),
        (b"%PDF-1.7\n\xe2\xe3", "0xe2 and may be a PDF"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"not UTF-8 text \(it has a byte {said}"):
            list(text_pieces(path))
    path.write_bytes("in another encoding".encode("utf-16le"))
    with pytest.raises(ValueError, match="NUL bytes, as UTF-16 does; if it is a text, save it as"):
        list(text_pieces(path))


def test_documents_of_several_files_in_order_from_any_place(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 4)
    plain = tmp_path / "a.txt"
    plain.write_text("one two three")
    rows = [{"text": "four"}, {"text": ""}, {"text": "five"}]
    lines = write_lines(tmp_path / "b.jsonl", rows)
    lines.write_text(lines.read_text().replace("\n", "\n\n"))  # blank lines are none
    corpus = Corpus((plain, lines, plain))
    found = list(read(corpus, Position()))
    assert "|".join(text for _, text in found) == "one| two| three|four|five|one| two| three"
    assert [place.document for place, _ in found] == [0, 0, 0, 1, 3, 4, 4, 4]
    assert [place.piece for place, _ in found] == [0, 1, 2, 0, 0, 0, 1, 2]
    for number, (place, _) in enumerate(found):
        assert list(read(corpus, place)) == found[number + 1 :]


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    for line, message in (
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: a JSON object"),
        ('{"body": "x"}', "line 2: no field 'text' among body; name one with --text-field"),
        ('{"text": 1}', "line 2: 'text' isn't a string"),
    ):
        path.write_text('{"text": "fine"}\n' + line + "\n")
        with pytest.raises(ValueError, match=message) as error:
            texts(Corpus((path,)))
        assert str(path) in str(error.value)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    words = [f"word {i}" for i in range(1000)]
    table = pyarrow.table({"text": words, "id": range(1000)})
    parquet.write_table(table, path, row_group_size=300)
    found = list(read(Corpus((path, path)), Position()))
    assert [text for _, text in found] == words * 2
    for number in (0, 298, 299, 300, 301, 999, 1000, 1999):
        assert list(read(Corpus((path, path)), found[number][0])) == found[number + 1 :]
    with pytest.raises(ValueError, match="no field 'body' among text, id"):
        texts(Corpus((path,), text_field="body"))
    with pytest.raises(ValueError, match="row 1: 'id' isn't a string"):
        texts(Corpus((path,), text_field="id"))
    path.write_text("not parquet at all")
    with pytest.raises(ValueError, match="not a readable parquet file") as error:
        texts(Corpus((path,)))
    assert "\n" not in str(error.value)


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


def test_the_real_stream_continues_at_its_mark(hub_of_files):
    everything = list(read(hub_of_files, Position()))
    for at in (5, 700, 1499):
        saved = Position(*json.loads(json.dumps(everything[at][0])))
        assert at - MARK_ROWS <= (saved.mark[0] if saved.mark else 0) <= at
        after = read(hub_of_files, saved)
        assert [text for _, text in after] == [text for _, text in everything[at + 1 :]]


def test_a_giant_row_is_refused_before_it_is_read(tmp_path):
    path, text = tmp_path / "rows.jsonl", tmp_path / "text.txt"
    for file in (path, text):
        file.write_bytes(b'{"text": "fine"}\n')
        os.truncate(file, 2**33)  # a line of 8 GB of holes
    with little_memory():
        rows = read(Corpus((path,)), Position())
        assert next(rows)[1] == "fine"
        with pytest.raises(ValueError, match="line 2: 67,108,864 bytes or more"):
            next(rows)
        with pytest.raises(ValueError, match="contains NUL bytes"):
            list(text_pieces(text))
