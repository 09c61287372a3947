import os
import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from cs336_lib.data import prepare
from cs336_lib.data.documents import Place
from cs336_lib.data.prepare import batched, encode_batch, encode_in_order, is_validation
from cs336_lib.data.tokenizer import CharTokenizer, GPT2Tokenizer

PIECES = [(Place(i // 2, 0, i // 2, i % 2), f"piece {i} of a text\n") for i in range(400)]


@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.1, 0.15, 1 / 3, 0.5, 0.77, 0.9])
def test_the_fraction_holds_at_every_length(fraction):
    chosen = np.cumsum([is_validation(i, fraction) for i in range(3000)])
    expected = fraction * np.arange(1, 3001)
    assert np.abs(chosen - expected).max() < 2


def test_the_choice_is_spread_and_a_first_short_group_gives_none():
    chosen = [i % 10 for i in range(10_000) if is_validation(i, 0.1)]
    assert np.bincount(chosen).min() > 60
    assert not any(is_validation(i, 0.1) for i in range(9))
    assert not is_validation(0, 0.9999999)


def test_batches_and_separators(monkeypatch):
    monkeypatch.setattr(prepare, "BATCH_CHARACTERS", 50)
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
    assert [batch[-1][0] for batch in batches] == [result.place for result in found]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same(monkeypatch, workers):
    monkeypatch.setattr(prepare, "BATCH_CHARACTERS", 100)
    work = partial(encode_batch, CharTokenizer("piece of a text\n0123456789"), None, 0.2)
    expected = [work(batch) for batch in batched(PIECES)]
    found = list(encode_in_order(work, batched(PIECES), workers))
    for a, b in zip(expected, found, strict=True):
        assert a.train.tolist() == b.train.tolist()
        assert a.val.tolist() == b.val.tolist()
        assert a.place == b.place


def test_reading_does_not_run_ahead_and_closing_ends_the_processes(monkeypatch):
    monkeypatch.setattr(prepare, "BATCH_CHARACTERS", 10)
    started, read = [], []
    popen = subprocess.Popen
    monkeypatch.setattr(
        prepare.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )
    pieces = (read.append(piece) or piece for piece in PIECES)
    results = encode_in_order(partial(encode_batch, GPT2Tokenizer(), None, 0.1), batched(pieces), 2)
    next(results)
    assert len(read) < 20
    results.close()
    assert [process.poll() is not None for process in started] == [True, True]


def test_little_to_do_starts_no_process(monkeypatch):
    monkeypatch.setattr(prepare, "worker_processes", None)
    work = partial(encode_batch, GPT2Tokenizer(), None, 0.1)
    assert len(list(encode_in_order(work, batched(PIECES), 2))) == 1


def test_a_dead_process_is_one_line(monkeypatch):
    monkeypatch.setattr(prepare, "BATCH_CHARACTERS", 10)
    with pytest.raises(ChildProcessError, match=r"ended early \(exit code 1; .* go on"):
        list(encode_in_order(os.fspath, batched(PIECES), 2))  # which fails on a list


def test_the_workers_do_not_load_torch():
    code = "import sys, cs336_lib.data.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_ends_with_its_input():
    code = "from cs336_lib.data.prepare import work; work()"
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    worker.stdin.write(pickle.dumps(len))
    worker.stdin.close()
    assert worker.wait(timeout=30) == 0
