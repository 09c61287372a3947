import json

import numpy as np
import pytest

from cs336_lib.data import documents
from cs336_lib.data import prepare as module
from cs336_lib.data.documents import Corpus, Position
from cs336_lib.data.loader import open_data
from cs336_lib.data.prepare import prepare
from cs336_lib.data.shards import TokenStream, open_shard
from cs336_lib.data.tokenizer import gpt2_encoding, load_tokenizer
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


def test_end_of_text_is_told_or_begins_a_document(tmp_path, capsys):
    path, text = tmp_path / "tales.txt", "Once.\n<|endoftext|>\nTwice.\n" * 20
    path.write_text(text)
    prepare(path, tmp_path / "told")
    assert "20 times <|endoftext|> stays ordinary text, and --split-" in capsys.readouterr().err
    prepare(Corpus((path,), split_documents=True), tmp_path / "split")
    ids = np.concatenate([tokens(tmp_path / "split", part) for part in ("train", "val")]).tolist()
    assert sorted(ids) == sorted([50256, *gpt2_encoding().encode(text, allowed_special="all")])


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


def test_what_is_done_stays_where_a_late_row_is_bad(corpus, tmp_path, small_pieces, monkeypatch):
    with open(corpus.paths[0], "a") as file:
        file.write('{"body": "x"}\n')
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"line 61: .*tmp-out keeps the progress"):
            prepare(corpus, tmp_path / "out", workers=1)
        assert (tmp_path / ".tmp-out" / "progress.json").exists()


def interrupted(corpus, tmp_path):
    """Kill a preparation, and return its temporary folder."""
    with pytest.raises(Killed), watching(tmp_path, 60):
        prepare(corpus, tmp_path / "out", workers=1)
    return tmp_path / ".tmp-out"


def test_only_the_same_command_goes_on_and_where_it_was(
    corpus, tmp_path, small_pieces, monkeypatch, capsys
):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    temporary = interrupted(corpus, tmp_path)
    before = contents(temporary)
    kept = corpus.paths[0].read_text()
    for source, options, names in (
        (corpus, {"val_fraction": 0.2}, "val_fraction"),
        (corpus, {"shard_tokens": 99}, "shard_tokens"),
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
    assert places == [Position(*saved["place"])]
    assert places[0].document > 5
    assert f"resuming after {saved['train'] + saved['val']:,} tokens" in capsys.readouterr().err
