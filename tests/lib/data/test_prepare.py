import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cs336_lib import cli
from cs336_lib.data import documents, shards
from cs336_lib.data import prepare as module
from cs336_lib.data.documents import Corpus, Place
from cs336_lib.data.loader import open_data
from cs336_lib.data.prepare import batched, encode_batch, encode_in_order, is_validation, prepare
from cs336_lib.data.shards import TokenStream, append, open_raw_shard, open_shard, write_shard
from cs336_lib.data.tokenizer import CharTokenizer, GPT2Tokenizer, load_tokenizer
from cs336_lib.io import locked

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


def test_unusable_text_is_named_and_nothing_written(tmp_path):
    path = tmp_path / "text.txt"
    for content in (b"", b"ab"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="more text needed") as error:
            prepare(path, tmp_path / "out")
        assert str(tmp_path / "out") in str(error.value)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["text.txt"]


def test_other_mistakes(text_file, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
        prepare(tmp_path / "missing.txt", tmp_path / "out")
    with pytest.raises(ValueError, match="val_fraction"):
        prepare(text_file, tmp_path / "out", "char", val_fraction=1.0)
    (tmp_path / "taken").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        prepare(text_file, tmp_path / "taken")
    with pytest.raises(ValueError, match="workers is 0"):
        prepare(text_file, tmp_path / "out", workers=0)
    with pytest.raises(ValueError, match="shard_tokens is 1"):
        prepare(text_file, tmp_path / "out", shard_tokens=1)


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


def test_documents_go_whole_to_one_part(corpus, tmp_path):
    counts = prepare(corpus, tmp_path / "out", val_fraction=0.2)
    found = {}
    for part in ("train", "val"):
        ids = tokens(tmp_path / "out", part)
        assert len(ids) == counts[part]
        assert ids[0] == END
        found[part] = GPT2Tokenizer().decode(ids.tolist()).split("<|endoftext|>")[1:]
    assert sorted(found["train"] + found["val"]) == sorted(WORDS)
    assert len(found["val"]) == 12
    for part in found.values():
        assert part == [words for words in WORDS if words in part]  # in their order


def test_fewer_documents_than_a_group_give_their_tail(tmp_path):
    paths = []
    for i in range(3):
        paths.append(tmp_path / f"{i}.txt")
        paths[-1].write_text(WORDS[i] * 10)
    counts = prepare(Corpus(tuple(paths)), tmp_path / "out", val_fraction=0.1)
    assert counts["val"] / (counts["train"] + counts["val"]) == pytest.approx(0.1, abs=0.01)
    ids = np.concatenate([tokens(tmp_path / "out", part) for part in ("train", "val")])
    text = "".join("<|endoftext|>" + words * 10 for words in WORDS[:3])
    assert GPT2Tokenizer().decode(ids.tolist()) == text


def test_characters_of_all_documents(corpus, tmp_path):
    prepare(corpus, tmp_path / "out", "char", 0.2)
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    assert set(tokenizer.alphabet) == set("".join(WORDS))
    whole = "".join(
        tokenizer.decode(tokens(tmp_path / "out", p).tolist()) for p in ("train", "val")
    )
    assert sorted(whole) == sorted("".join("\n" + words for words in WORDS))


def test_documents_of_characters_begin_with_a_newline(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "First one ends."}\n{"text": "Second"}\n{"text": "Third\\n"}\n')
    prepare(Corpus((path,)), tmp_path / "out", "char", 0.2)
    tokenizer = load_tokenizer(tmp_path / "out" / "tokenizer.json")
    ids = np.concatenate([tokens(tmp_path / "out", part) for part in ("train", "val")])
    assert tokenizer.decode(ids.tolist()) == "\nFirst one ends.\nSecond\nThird\n"


def test_rows_without_a_text_are_skipped_and_counted(tmp_path, capsys):
    lines = [json.dumps({"text": words}) for words in WORDS]
    (tmp_path / "clean.jsonl").write_text("\n".join([*lines[:7], '{"text": ""}', *lines[7:]]))
    (tmp_path / "rows.jsonl").write_text("\n".join([*lines[:7], '{"text": null}', *lines[7:]]))
    for tokenizer in ("gpt2", "char"):
        for name in ("clean", "rows"):
            prepare(Corpus((tmp_path / f"{name}.jsonl",)), tmp_path / tokenizer / name, tokenizer)
        said = capsys.readouterr().err
        assert said.count("without a text") == 1
        assert "rows: 1 row without a text was skipped (" in said
        assert "rows.jsonl, line 8)" in said
        assert contents(tmp_path / tokenizer / "clean") == contents(tmp_path / tokenizer / "rows")
    (tmp_path / "nulls.jsonl").write_text('{"text": null}\n' * 3)
    with pytest.raises(ValueError, match="more text needed; 3 rows without a text were skipped"):
        prepare(tmp_path / "nulls.jsonl", tmp_path / "nulls")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_is_read_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"pipe: not a regular file, and .* char reads it twice"):
        prepare(pipe, tmp_path / "out", "char")
    writer = threading.Thread(target=pipe.write_text, args=(TEXT,))
    writer.start()
    prepare(pipe, tmp_path / "out", "gpt2")
    writer.join()
    ids = np.concatenate([tokens(tmp_path / "out", part) for part in ("train", "val")])
    assert GPT2Tokenizer().decode(ids.tolist()) == TEXT


def test_a_folder_says_how_to_name_its_files(tmp_path):
    folder = tmp_path / "my texts"
    folder.mkdir()
    with pytest.raises(ValueError, match="my texts: an empty folder; name files"):
        prepare(folder, tmp_path / "out")
    for name in ("README.md", "a.txt", "b.txt"):
        (folder / name).write_text(TEXT)
    with pytest.raises(
        ValueError, match=r"a folder; name its files, such as .*/'?\*\.txt"
    ) as error:
        prepare(folder, tmp_path / "out")
    pattern = str(error.value).partition("such as ")[2]
    shell = f"printf '%s\\n' {pattern}"
    listed = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
    assert listed.splitlines() == [str(folder / "a.txt"), str(folder / "b.txt")]
    prepare(folder / "a.txt", tmp_path / "prepared")
    with pytest.raises(ValueError, match="has shards already; `cs336 train` reads it"):
        prepare(tmp_path / "prepared", tmp_path / "out")


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


class Killed(BaseException):
    """Stands in for a kill: no `except` of ours sees it."""


def cut_off(monkeypatch, at):
    """Have the run die at the `at`-th of its writes, once before and once after writing."""
    calls = iter(range(10**9))

    def dying(function):
        def wrapped(*arguments, **options):
            if next(calls) == at:
                raise Killed
            result = function(*arguments, **options)
            if next(calls) == at:
                raise Killed
            return result

        return wrapped

    for name in ("append", "shorten", "save_progress"):
        monkeypatch.setattr(module, name, dying(getattr(module, name)))
    monkeypatch.setattr(module.os, "replace", dying(os.replace))


@pytest.mark.parametrize("kind", ["text", "char"])
def test_a_run_cut_off_anywhere_goes_on(
    corpus, text_file, tmp_path, small_pieces, monkeypatch, kind
):
    monkeypatch.setattr(module.os, "fsync", lambda _: None)  # the machine lives: no need to wait
    source = text_file if kind == "text" else corpus
    tokenizer = "char" if kind == "char" else "gpt2"
    options = {"tokenizer": tokenizer, "shard_tokens": 200, "workers": 1}
    prepare(source, tmp_path / "whole", **options)
    expected = contents(tmp_path / "whole")
    out, resumed = tmp_path / "out", 0
    for at in range(10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "SAVE_SECONDS", 0 if at % 3 else 1e9)
            cut_off(patch, at)
            try:
                prepare(source, out, **options)
                finished = True
            except Killed:
                finished = False
        if not out.exists():  # killed after the very last step, it does
            resumed += (tmp_path / ".tmp-out" / "progress.json").exists()
            prepare(source, out, **options)
        found = contents(out)
        found.pop("progress.json", None)
        assert found == expected, at
        assert not (tmp_path / ".tmp-out").exists()
        module.shutil.rmtree(out)
        if finished:
            break
    assert at > 40
    assert resumed > 20


def test_work_done_is_not_done_again(corpus, tmp_path, small_pieces, monkeypatch, capsys):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, 60)
        with pytest.raises(Killed):
            prepare(corpus, tmp_path / "out")
    saved = json.loads((tmp_path / ".tmp-out" / "progress.json").read_text())
    places = []
    read = module.read
    monkeypatch.setattr(module, "read", lambda *a: places.append(a[1]) or read(*a))
    prepare(corpus, tmp_path / "out")
    assert places == [Place(*saved["place"])]
    assert places[0].document > 5
    message = f"resuming after {saved['train'] + saved['val']:,} tokens"
    assert message in capsys.readouterr().err


def test_another_command_does_not_go_on(corpus, tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    cut_off(monkeypatch, 60)
    with pytest.raises(Killed):
        prepare(corpus, tmp_path / "out")
    before = contents(tmp_path / ".tmp-out")
    with pytest.raises(ValueError, match="unfinished run with other val_fraction; give the same"):
        prepare(corpus, tmp_path / "out", val_fraction=0.2)
    corpus.paths[0].write_text('{"text": "changed"}\n')
    with pytest.raises(ValueError, match="unfinished run with other shard_tokens and paths"):
        prepare(corpus, tmp_path / "out", shard_tokens=99)
    assert contents(tmp_path / ".tmp-out") == before


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


def test_the_hub_is_not_streamed_again_from_its_beginning(tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    monkeypatch.setattr(documents, "MARK_ROWS", 4)
    streams = []

    def load(*_, **__):
        streams.append(Stream())
        return streams[-1]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    corpus, out = Corpus(hub="x/y"), tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, 60)
        with pytest.raises(Killed):
            prepare(corpus, out, workers=1)
    saved = json.loads((tmp_path / ".tmp-out" / "progress.json").read_text())
    done = saved["place"][0]
    assert done > 10
    prepare(corpus, out, workers=1)
    assert done - 4 <= streams[1].sent[0] <= done
    assert streams[1].sent[-1] == len(WORDS) - 1
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


def test_the_folder_is_held_all_the_time(corpus, tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    save, lock = module.save_progress, tmp_path / ".out.lock"

    def while_held(temporary, *arguments):
        with pytest.raises(ValueError, match="another process"), locked(lock, timeout=0):
            pass
        save(temporary, *arguments)

    monkeypatch.setattr(module, "save_progress", while_held)
    prepare(corpus, tmp_path / "out", workers=1)
    assert not lock.exists()


def test_a_run_that_another_has_overtaken(corpus, tmp_path, monkeypatch):
    @contextmanager
    def late(folder):
        (tmp_path / "out").mkdir()
        yield

    monkeypatch.setattr(module, "locked", late)
    with pytest.raises(FileExistsError, match="exists already"):
        prepare(corpus, tmp_path / "out")
    assert not (tmp_path / ".tmp-out").exists()


def test_an_error_of_the_disk_names_the_file(corpus, tmp_path, small_pieces, monkeypatch):
    """Each of the calls that write fails once; then the same command completes the folder."""
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    prepare(corpus, tmp_path / "whole", workers=1)
    expected = contents(tmp_path / "whole")
    for at in range(48):
        calls = iter(range(10**9))

        def filling(function, calls=calls, at=at):
            def wrapped(*arguments, **options):
                # files that are only read don't count
                if arguments[1:2] != ("rb",) and next(calls) == at:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return function(*arguments, **options)

            return wrapped

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", filling(os.replace))
            patch.setattr(os, "fsync", filling(os.fsync))
            patch.setattr(shards, "open", filling(open), raising=False)
            with pytest.raises(
                OSError, match=r"^/.*: cannot be written \(No space left on device\)"
            ) as error:
                prepare(corpus, tmp_path / "out", workers=1)
        kept = (tmp_path / ".tmp-out").exists()
        assert kept == str(error.value).endswith("and the same command resumes from there")
        prepare(corpus, tmp_path / "out", workers=1)
        assert contents(tmp_path / "out") == expected
        shutil.rmtree(tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_named(corpus, text_file, tmp_path):
    with pytest.raises(OSError, match=r"lamb\.txt: cannot be written \(File exists\)"):
        prepare(corpus, text_file / "out")
    for folder in ("temporary", "out"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    with pytest.raises(OSError, match=r"out: cannot be written \(Directory not empty\)"):
        module.publish(tmp_path / "temporary", tmp_path / "out", module.Progress())


@pytest.mark.skipif(sys.platform != "linux", reason="where /dev/full is")
def test_a_shard_that_does_not_fit_is_named(tmp_path):
    link = tmp_path / "train_000000.bin"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"train_000000\.bin: cannot be written \(No space left"):
        append(tmp_path, "train", 0, np.arange(10), shard_tokens=100)


def test_a_million_blanks(tmp_path):
    for suffix in (".txt", ".jsonl"):
        text = "hello" + "\n" * 1_000_000 + "world " * 100 + " " * 1_000_000 + "end\n"
        path = tmp_path / f"blanks{suffix}"
        path.write_text(text if suffix == ".txt" else json.dumps({"text": text}))
        prepare(path, tmp_path / suffix, workers=2)
        ids = np.concatenate([tokens(tmp_path / suffix, part) for part in ("train", "val")])
        assert GPT2Tokenizer().decode(ids[ids != END].tolist()) == text


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


def test_training_on_a_raw_file_gives_the_command_that_converts_it(tmp_path, capsys):
    for count in (40, 2000):
        folder = tmp_path / str(count)
        raw = folder / "open web text" / "train.bin"
        raw.parent.mkdir(parents=True)
        ids = GPT2Tokenizer().encode("To be, or not to be. " * 1000)[:count]
        ids.astype("<u2").tofile(raw)
        with pytest.raises(ValueError, match=r"nanoGPT's files have no header") as error:
            open_shard(raw)
        assert "\n" not in str(error.value)
        command = shlex.split(str(error.value).split("`")[1])
        assert command.pop(0) == "cs336"
        cli.main([word.replace("FOLDER", str(folder / "out")) for word in command])
        assert f"{count - count // 10:,} tokens to train on" in capsys.readouterr().out
        streams = open_data(str(folder / "out"), "", "gpt2")
        assert sum(map(len, streams[:2])) == count


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


def test_raw_leaves_an_unfinished_run_alone(corpus, raw_file, tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, 60)
        with pytest.raises(Killed):
            prepare(corpus, tmp_path / "out")
    before = contents(tmp_path / ".tmp-out")
    with pytest.raises(
        ValueError, match="tmp-out holds an unfinished run with other paths and raw"
    ):
        prepare(raw(raw_file), tmp_path / "out")
    assert contents(tmp_path / ".tmp-out") == before


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


def test_the_choice_is_spread_and_a_first_short_group_gives_none():
    chosen = [i % 10 for i in range(10_000) if is_validation(i, 0.1)]
    assert np.bincount(chosen).min() > 60
    assert not any(is_validation(i, 0.1) for i in range(9))
    assert not is_validation(0, 0.9999999)


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


def test_any_number_of_workers_gives_the_same(monkeypatch):
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 100)
    work = partial(encode_batch, CharTokenizer("piece of a text\n0123456789"), None, 0.2)
    expected = [work(batch) for batch in batched(PIECES)]
    for workers in (1, 3):
        found = list(encode_in_order(work, batched(PIECES), workers))
        for a, b in zip(expected, found, strict=True):
            assert [ids.tolist() for ids in a[:2]] == [ids.tolist() for ids in b[:2]]
            assert a[2] == b[2]


def test_reading_does_not_run_ahead(monkeypatch):
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 10)
    seen = []
    pieces = (seen.append(piece) or piece for piece in PIECES)
    results = encode_in_order(partial(encode_batch, GPT2Tokenizer(), None, 0.1), batched(pieces), 2)
    next(results)
    assert len(seen) < 20
    results.close()


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
