import pytest

from cs336_lib.data import open_data, open_shard
from cs336_lib.prepare import prepare, read_text
from cs336_lib.tokenizer import load_tokenizer

TEXT = "Mary had a little lamb,\nits fleece was white as snow.\n" * 50


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "lamb.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("name", ["gpt2", "char"])
def test_the_text_comes_back(text_file, tmp_path, name):
    out = tmp_path / "deep" / "prepared"
    counts = prepare(text_file, out, name, val_fraction=0.2)
    tokenizer = load_tokenizer(out / "tokenizer.json")
    train, val = (open_shard(out / f"{part}_000000.bin") for part in ("train", "val"))
    assert tokenizer.decode([*train.tolist(), *val.tolist()]) == TEXT
    assert counts == {"train": len(train), "val": len(val)}
    assert len(val) / (len(train) + len(val)) == pytest.approx(0.2, abs=0.01)
    assert sorted(p.name for p in out.parent.iterdir()) == ["prepared"]
    streams = open_data(str(out), "", name)
    assert [len(stream) for stream in streams[:2]] == [len(train), len(val)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"abc\0def", "NUL bytes"),
        (b"caf\xe9 au lait", "not UTF-8 text"),
        (b"ab", "more text needed"),
    ],
)
def test_unusable_text_is_named_and_nothing_written(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        prepare(path, tmp_path / "out", "char")
    assert str(path) in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.txt"]


def test_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read_text(path) == "one\ntwo\n"


def test_other_mistakes(text_file, tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        prepare(tmp_path / "missing.txt", tmp_path / "out")
    with pytest.raises(ValueError, match="val_fraction"):
        prepare(text_file, tmp_path / "out", "char", val_fraction=1.0)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        prepare(text_file, tmp_path / "taken")
