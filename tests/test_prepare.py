import errno
import json
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from cs336_lib import cli
from cs336_lib.data import documents
from cs336_lib.data import prepare as module
from cs336_lib.data.documents import Corpus
from cs336_lib.data.loader import open_data
from cs336_lib.data.prepare import prepare, prepare_raw, read_raw_shard
from cs336_lib.data.shards import TokenStream, open_shard, write_shard
from cs336_lib.data.tokenizer import GPT2Tokenizer, load_tokenizer
from cs336_lib.io import locked

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


def test_other_mistakes(text_file, tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        prepare(tmp_path / "missing.txt", tmp_path / "out")
    with pytest.raises(ValueError, match="val_fraction"):
        prepare(text_file, tmp_path / "out", "char", val_fraction=1.0)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ValueError, match="exists already"):
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
    monkeypatch.setattr(documents, "PIECE_BYTES", 64)
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
    assert sorted(whole) == sorted("".join(WORDS))  # and nothing between them


@pytest.mark.parametrize("shard_tokens", [7, 100, 451, 10**6])
@pytest.mark.parametrize("kind", ["documents", "text"])
def test_shards_are_full_and_hold_the_same(
    corpus, text_file, tmp_path, small_pieces, shard_tokens, kind
):
    source = corpus if kind == "documents" else text_file
    prepare(source, tmp_path / "whole", val_fraction=0.2)
    prepare(source, tmp_path / "cut", val_fraction=0.2, shard_tokens=shard_tokens)
    for part in ("train", "val"):
        shards = [open_shard(path) for path in sorted((tmp_path / "cut").glob(f"{part}_*.bin"))]
        assert {len(shard) for shard in shards[:-1]} <= {shard_tokens}
        assert 0 < len(shards[-1]) <= shard_tokens
        whole = tokens(tmp_path / "whole", part)
        assert np.concatenate(shards).tolist() == whole.tolist()
    streams = open_data(str(tmp_path / "cut"), "", "gpt2")
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


@pytest.mark.parametrize("kind", ["documents", "text", "char"])
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
    assert places == [tuple(saved["place"])]
    assert places[0].document > 5
    message = f"going on after the {saved['train'] + saved['val']:,} tokens of a run cut off"
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
    with pytest.raises(ValueError, match="unfinished run with other files and shard_tokens"):
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
    kept = r"tmp-out keeps what is done: the same command goes on from there$"
    for load, message in ((offline, "cannot be read from the"), (None, "package datasets")):
        datasets(load)
        with pytest.raises(ValueError, match=f"{message}.*{kept}"):
            prepare(corpus, out, workers=1)
        assert contents(tmp_path / ".tmp-out") == before
    datasets(lambda *_, **__: Stream())
    prepare(corpus, out, workers=1)
    assert capsys.readouterr().err.count("going on after the") == 3
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
    done = saved["place"][2]
    assert done > 10
    prepare(corpus, out, workers=1)
    assert done - 4 <= streams[1].sent[0] <= done
    assert streams[1].sent[-1] == len(WORDS) - 1
    prepare(corpus, tmp_path / "whole", workers=1)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("mark", [5, [1], [1, 2, 3], {"row": 1}, "row"])
def test_a_mark_that_is_none_is_refused(corpus, tmp_path, small_pieces, monkeypatch, mark):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, 60)
        with pytest.raises(Killed):
            prepare(corpus, tmp_path / "out")
    path = tmp_path / ".tmp-out" / "progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mark": mark}))
    with pytest.raises(ValueError, match="not what `cs336 prepare` writes"):
        prepare(corpus, tmp_path / "out")


def test_what_is_done_stays_where_a_late_row_is_bad(corpus, tmp_path, small_pieces, monkeypatch):
    with open(corpus.paths[0], "a") as file:
        file.write('{"body": "x"}\n')
    with pytest.raises(ValueError, match=r"line 61: no field 'text' among body; .*--text-field$"):
        prepare(corpus, tmp_path / "out", workers=1)
    assert not (tmp_path / ".tmp-out").exists()  # nothing was saved yet
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"line 61: .*tmp-out keeps what is done"):
            prepare(corpus, tmp_path / "out", workers=1)
        assert (tmp_path / ".tmp-out" / "progress.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot lock a folder")
def test_two_runs_do_not_share_a_folder(corpus, raw_file, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "locked", partial(locked, patience=0))
    out, temporary = tmp_path / "out", tmp_path / ".tmp-out"
    temporary.mkdir()
    (temporary / "train_000000.bin").write_text("what the first has written")
    before = contents(temporary)
    with locked(temporary):  # as the first run, from whatever process
        for second in (partial(prepare, corpus), partial(prepare_raw, (raw_file,))):
            with pytest.raises(ValueError, match="another process is writing to it; wait"):
                second(out)
            assert contents(temporary) == before
    prepare(corpus, out)
    assert sorted(contents(out)) == ["tokenizer.json", "train_000000.bin", "val_000000.bin"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot lock a folder")
def test_the_folder_is_held_all_the_time(corpus, tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    save = module.save_progress

    def while_held(temporary, *arguments):
        with pytest.raises(ValueError, match="another process"), locked(temporary, patience=0):
            pass
        save(temporary, *arguments)

    monkeypatch.setattr(module, "save_progress", while_held)
    prepare(corpus, tmp_path / "out", workers=1)
    with locked(tmp_path / "out", patience=0):
        pass


def test_a_run_that_another_has_overtaken(corpus, tmp_path, monkeypatch):
    @contextmanager
    def late(folder):
        (tmp_path / "out").mkdir()
        yield

    monkeypatch.setattr(module, "locked", late)
    with pytest.raises(ValueError, match="exists already"):
        prepare(corpus, tmp_path / "out")
    assert not (tmp_path / ".tmp-out").exists()


@pytest.mark.parametrize("at", range(20))
def test_an_error_of_the_disk_names_the_file_and_what_to_do(
    corpus, tmp_path, small_pieces, monkeypatch, at
):
    """Any of the calls that write fails once; then the same command goes on."""
    calls = iter(range(10**9))

    def filling(function):
        def wrapped(*arguments, **options):
            # what the tests read or append does not count
            if arguments[1:2] != ("rb",) and next(calls) == at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*arguments, **options)

        return wrapped

    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.os, "replace", filling(os.replace))
        patch.setattr(module, "open", filling(open), raising=False)
        patch.setattr(module, "sync", filling(module.sync))
        with pytest.raises(
            OSError,
            match=r"^/.*: cannot be written \(No space left on device\); free some space, or .* "
            r"and run the same command again to go on$",
        ):
            prepare(corpus, tmp_path / "out", workers=1)
    prepare(corpus, tmp_path / "out", workers=1)
    prepare(corpus, tmp_path / "whole", workers=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_folder_that_cannot_be_made_is_named(corpus, text_file, tmp_path):
    with pytest.raises(OSError, match=r"\.tmp-out: cannot be written \(Not a directory\); free"):
        prepare(corpus, text_file / "out")
    for folder in ("temporary", "out"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    with pytest.raises(OSError, match=r"out: cannot be written \(Directory not empty\); free"):
        module.publish(tmp_path / "temporary", tmp_path / "out", module.Progress())


@pytest.mark.skipif(sys.platform != "linux", reason="where /dev/full is")
def test_a_shard_that_does_not_fit_is_named(tmp_path):
    link = tmp_path / "train_000000.bin"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"train_000000\.bin: cannot be written \(No space left"):
        module.append(tmp_path, "train", 0, np.arange(10), shard_tokens=100)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_a_million_blanks(tmp_path, monkeypatch, workers, suffix):
    monkeypatch.setattr(module, "WORTH_PROCESSES", 1)
    text = "hello" + "\n" * 1_000_000 + "world " * 100 + " " * 1_000_000 + "end\n"
    path = tmp_path / f"blanks{suffix}"
    path.write_text(text if suffix == ".txt" else json.dumps({"text": text}))
    prepare(path, tmp_path / "out", workers=workers)
    ids = np.concatenate([tokens(tmp_path / "out", part) for part in ("train", "val")])
    assert GPT2Tokenizer().decode(ids[ids != END].tolist()) == text


def test_a_script_needs_no_main_guard(corpus, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from cs336_lib.data import documents, prepare\n"
        "prepare.BATCH_CHARACTERS = 100\n"
        f"paths = (Path({str(corpus.paths[0])!r}),)\n"
        f"out = Path({str(tmp_path / 'out')!r})\n"
        "print(prepare.prepare(documents.Corpus(paths), out, workers=2))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{prepare(corpus, tmp_path / 'here')}\n"
    assert contents(tmp_path / "out") == contents(tmp_path / "here")


@pytest.fixture
def raw_file(tmp_path):
    path = tmp_path / "train.bin"
    (np.arange(1000) * 50).astype("<u2").tofile(path)
    return path


def test_raw_tokens(raw_file, tmp_path):
    ids = read_raw_shard(raw_file)
    assert ids.tolist() == (np.arange(1000) * 50).tolist()
    counts = prepare_raw((raw_file,), tmp_path / "out", 0.1, shard_tokens=300)
    assert counts == {"train": 900, "val": 100}
    both = np.concatenate([tokens(tmp_path / "out", part) for part in ("train", "val")])
    assert both.tolist() == ids.tolist()
    assert len(list((tmp_path / "out").glob("train_*.bin"))) == 3
    assert load_tokenizer(tmp_path / "out" / "tokenizer.json").name == "gpt2"
    val = tmp_path / "val.bin"
    np.arange(10).astype("<u2").tofile(val)
    assert prepare_raw((raw_file, val), tmp_path / "two") == {"train": 1000, "val": 10}
    assert tokens(tmp_path / "two", "val").tolist() == list(range(10))


@pytest.mark.parametrize("count", [40, 2000])
def test_who_trains_on_a_raw_file_is_given_the_command_that_converts_it(tmp_path, capsys, count):
    raw = tmp_path / "open web text" / "train.bin"
    raw.parent.mkdir()
    ids = GPT2Tokenizer().encode("To be, or not to be. " * 1000)[:count]
    ids.astype("<u2").tofile(raw)
    with pytest.raises(ValueError, match=r"nanoGPT's have no header") as error:
        open_shard(raw)
    assert "\n" not in str(error.value)
    command = shlex.split(str(error.value).split("`")[1])
    assert command.pop(0) == "cs336"
    cli.main([word.replace("FOLDER", str(tmp_path / "out")) for word in command])
    assert f"{count - count // 10:,} tokens to train on" in capsys.readouterr().out
    streams = open_data(str(tmp_path / "out"), "", "gpt2")
    assert sum(map(len, streams[:2])) == count


def test_what_is_no_raw_file(raw_file, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="3 files; --raw takes one, or two"):
        prepare_raw((raw_file,) * 3, out)
    np.array([1, 60000, 2, 3]).astype("<u2").tofile(raw_file)
    with pytest.raises(ValueError, match="id 60000, but GPT-2's vocabulary has 50257"):
        prepare_raw((raw_file,), out, 0.5)
    write_shard(raw_file, np.arange(10))
    with pytest.raises(ValueError, match=r"an llm\.c shard already"):
        prepare_raw((raw_file,), out)
    raw_file.write_bytes(b"abc")
    with pytest.raises(ValueError, match="3 bytes, an odd number"):
        prepare_raw((raw_file,), out)
    raw_file.write_bytes(b"")
    with pytest.raises(ValueError, match="the file is empty"):
        prepare_raw((raw_file,), out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.bin"]


def test_raw_leaves_an_unfinished_run_alone(corpus, raw_file, tmp_path, small_pieces, monkeypatch):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0)
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch, 60)
        with pytest.raises(Killed):
            prepare(corpus, tmp_path / "out")
    before = contents(tmp_path / ".tmp-out")
    with pytest.raises(ValueError, match="tmp-out holds an unfinished run; choose another --out"):
        prepare_raw((raw_file,), tmp_path / "out")
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
