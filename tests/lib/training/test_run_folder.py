"""A run goes on with its own data and tokenizer or not at all, alone in its folder."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from cs336_lib.config import TrainConfig
from cs336_lib.data.prepare import prepare
from cs336_lib.data.shards import open_shard, write_shard
from cs336_lib.data.tokenizer import CharTokenizer, GPT2Tokenizer, load_tokenizer, save_tokenizer
from cs336_lib.io import locked
from cs336_lib.training import checkpoint, job
from cs336_lib.training.loop import train
from cs336_lib.training.run_folder import conflicts

LETTERS = "To be, or not to be, that is the question:\n"
OTHER_LETTERS = LETTERS.translate(str.maketrans("Tobenrthaisqu", "XYZVWUKLMNPRS"))  # as many


def contents(run_dir: str) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(Path(run_dir).rglob("*")) if p.is_file()}


def refused(config: TrainConfig, message: str) -> str:
    """Check that a run is refused in one line and nothing is written; the line."""
    before = contents(config.run_dir)
    existed = Path(config.run_dir).exists()
    with pytest.raises(ValueError, match=message) as error:
        train(config)
    assert contents(config.run_dir) == before
    assert Path(config.run_dir).exists() == existed
    assert "\n" not in str(error.value)
    return str(error.value)


def resumed(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, resume=True)


def test_conflicts_name_what_changes_the_result_and_nothing_else():
    saved = dataclasses.asdict(TrainConfig())
    elsewhere = TrainConfig(run_dir="elsewhere", device="cpu", micro_batch_size=3)
    assert conflicts(elsewhere, saved) == []
    assert conflicts(TrainConfig(seed=7), saved) == ["seed was 1337, now 7"]


def test_other_data_or_another_tokenizer_is_refused(tiny_run):
    train(tiny_run)
    path = Path(tiny_run.run_dir) / "tokenizer.json"
    own, kept = load_tokenizer(path), path.read_text()
    others = (own.alphabet[:-1], own.alphabet[:-1] + chr(0x10FFFF))  # fewer ids, and as many
    for other in (GPT2Tokenizer(), *map(CharTokenizer, others)):
        save_tokenizer(other, path)
        refused(resumed(tiny_run), r"tokenizer.json isn't the tokenizer of .*prepared; resume")
        with pytest.raises(ValueError, match="isn't the tokenizer of this model, which has"):
            checkpoint.load_run(path.parent, torch.device("cpu"))
    path.write_text(kept)
    for part in ("train", "val"):
        shard = Path(tiny_run.train_data) / f"{part}_000000.bin"
        ids = np.array(open_shard(shard))
        write_shard(shard, ids[::-1])
        refused(resumed(tiny_run), "step_00000012: this run's data has changed since; restore it")
        write_shard(shard, ids[:-1])
        refused(resumed(tiny_run), "data has changed")
        write_shard(shard, ids)
    train(resumed(tiny_run))


def test_weights_for_another_alphabet_of_the_same_size_are_refused(tiny_run, tmp_path):
    train(tiny_run)
    other = dataclasses.replace(
        tiny_run,
        train_data=str(tmp_path / "other"),
        init_from=tiny_run.run_dir,
        run_dir=str(tmp_path / "tuned"),
    )
    (tmp_path / "other.txt").write_text(OTHER_LETTERS * 100)
    prepare(tmp_path / "other.txt", tmp_path / "other", "char")
    sizes = {
        len(load_tokenizer(Path(c.train_data) / "tokenizer.json").alphabet)
        for c in (tiny_run, other)
    }
    assert len(sizes) == 1
    refused(other, r"run \(.*was trained with another tokenizer than .*other .*has; pass")


def test_an_id_outside_the_vocabulary_is_found_before_the_folder_is_made(tiny_run):
    late = dataclasses.replace(tiny_run, eval_every=0)
    for part in ("train", "val"):
        shard = Path(tiny_run.train_data) / f"{part}_000000.bin"
        ids = np.array(open_shard(shard))
        write_shard(shard, np.where(np.arange(len(ids)) % 7 == 5, 60_000, ids))
        refused(late, rf"{part}_000000\.bin, token \d+: id 60000")
        write_shard(shard, ids)
    assert train(late).finished  # the same command


def test_a_run_holds_its_folder_from_first_to_last_and_no_longer(tiny_run):
    held = []

    def look(row: dict) -> None:
        with pytest.raises(ValueError, match="another process"), locked(lock, timeout=0):
            pass
        held.append(row["step"])
        if row["step"] == 5:
            raise RuntimeError("the plot broke")

    lock = Path(tiny_run.run_dir) / ".lock"
    with pytest.raises(RuntimeError, match="plot"):
        train(tiny_run, on_step=look)
    assert held == list(range(6))
    assert not lock.exists(), "although this process, as a notebook's, continues"
    metrics = lock.with_name(
        "metrics.jsonl"
    )  # a second run writes it after a hand deleted the lock
    with pytest.raises(ValueError, match="another process writes there"):
        train(resumed(tiny_run), on_step=lambda _: metrics.write_text(""))
    assert train(resumed(tiny_run)).finished
    assert train(resumed(tiny_run)).finished


def test_a_run_begun_in_the_folder_while_this_one_got_ready_is_left_alone(tiny_run, monkeypatch):
    """Two start at once; while one draws its weights, the other comes first and ends."""
    honest, others = job.new_model, []

    def slow(*arguments):
        if not others:
            others.append(True)
            train(tiny_run)
            others.append(contents(tiny_run.run_dir))
        return honest(*arguments)

    monkeypatch.setattr(job, "new_model", slow)
    with pytest.raises(ValueError, match="another run has just started"):
        train(resumed(tiny_run))
    assert contents(tiny_run.run_dir) == others[1]
