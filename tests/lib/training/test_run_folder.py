"""A run goes on with its own data and tokenizer or not at all, alone in its folder."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cs336_lib import cli
from cs336_lib.config import TrainConfig
from cs336_lib.data.prepare import prepare
from cs336_lib.data.shards import open_shard, write_shard
from cs336_lib.data.tokenizer import CharTokenizer, GPT2Tokenizer, load_tokenizer, save_tokenizer
from cs336_lib.io import locked, sha256
from cs336_lib.training import checkpoint, job
from cs336_lib.training.loop import train

LETTERS = "To be, or not to be, that is the question:\n"
OTHER_LETTERS = LETTERS.translate(str.maketrans("Tobenrthaisqu", "XYZVWUKLMNPRS"))  # as many


def prepare_again(config: TrainConfig, text: str) -> None:
    """Put other data in the place of a run's."""
    folder = Path(config.train_data)
    shutil.rmtree(folder, ignore_errors=True)
    file = folder.with_suffix(".txt")
    file.write_text(text)
    prepare(file, folder, "char")


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


def change_state(found: Path, **changes: object) -> None:
    """Write other things into a checkpoint's state.json; None takes a name out."""
    state = json.loads((found / checkpoint.STATE).read_text()) | changes
    state = {name: value for name, value in state.items() if value is not None}
    (found / checkpoint.STATE).write_text(checkpoint.to_json(state))
    names = (checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.STATE)
    manifest = {name: sha256(found / name) for name in names}
    (found / checkpoint.MANIFEST).write_text(checkpoint.to_json(manifest))


def stop_after(steps: int):
    def stop(row: dict) -> None:
        if row["step"] == steps - 1:
            signal.raise_signal(signal.SIGTERM)

    return stop


def newest(config: TrainConfig) -> Path:
    return checkpoint.checkpoints(Path(config.run_dir) / "checkpoints")[-1]


# --- other data than the run was trained on


def test_another_alphabet_is_refused_also_by_a_finished_run(tiny_run):
    train(tiny_run)
    prepare_again(tiny_run, OTHER_LETTERS * 100)
    line = refused(resumed(tiny_run), r"tokenizer.json isn't the tokenizer of .*prepared; resume")
    assert "another --run-dir" in line


def test_a_run_is_not_sampled_with_the_tokenizer_of_another(tiny_run, capsys):
    train(dataclasses.replace(tiny_run, max_steps=3))
    path = Path(tiny_run.run_dir) / "tokenizer.json"
    command = ["sample", "--run-dir", tiny_run.run_dir, "--device", "cpu", "--max-new-tokens", "3"]
    cli.main(command)
    capsys.readouterr()
    kept = path.read_text()
    own = load_tokenizer(path)
    others = (own.alphabet[:-1], own.alphabet[:-1] + chr(0x10FFFF))  # fewer ids, and as many
    for other in (GPT2Tokenizer(), *map(CharTokenizer, others)):
        save_tokenizer(other, path)
        with pytest.raises(SystemExit):
            cli.main(command)
        said = capsys.readouterr().err
        assert "isn't the tokenizer of this model, which has" in said
        assert said.count("\n") == 1
    path.write_text(json.dumps({"name": "char", "alphabet": own.alphabet}))  # as in old runs
    cli.main(command)
    state = newest(tiny_run) / "state.json"
    content = json.loads(state.read_text())
    assert content.pop("tokenizer") == own.digest
    seal_as_old(state, content)
    path.write_text(kept)
    cli.main(command)
    save_tokenizer(GPT2Tokenizer(), path)
    with pytest.raises(SystemExit):
        cli.main(command)


def seal_as_old(state: Path, content: dict) -> None:
    """Write a state.json that an older version could have written."""
    state.write_text(checkpoint.to_json(content))
    manifest = state.with_name("manifest.json")
    files = json.loads(manifest.read_text()) | {"state.json": sha256(state)}
    manifest.write_text(checkpoint.to_json(files))


def test_other_data_of_the_same_alphabet_is_refused(tiny_run):
    train(tiny_run)
    for part in ("train", "val"):
        shard = Path(tiny_run.train_data) / f"{part}_000000.bin"
        ids = np.array(open_shard(shard))
        write_shard(shard, ids[::-1])
        refused(resumed(tiny_run), "step_00000012: this run's data has changed since; restore it")
        write_shard(shard, ids[:-1])
        refused(resumed(tiny_run), "data has changed")
        write_shard(shard, ids)
    train(resumed(tiny_run))


def test_the_same_data_cut_into_other_shards_is_the_same(tiny_run):
    train(tiny_run)
    shard = Path(tiny_run.train_data) / "train_000000.bin"
    ids = np.array(open_shard(shard))
    write_shard(shard, ids[:1000])
    write_shard(shard.with_name("train_000001.bin"), ids[1000:])
    train(resumed(tiny_run))


def test_a_checkpoint_older_than_fingerprints_is_resumed(tiny_run):
    train(tiny_run, on_step=stop_after(6))
    change_state(newest(tiny_run), data="sha256")
    refused(resumed(tiny_run), "data has changed")
    change_state(newest(tiny_run), data=None)
    assert train(resumed(tiny_run)).finished


def test_another_vocabulary_of_the_same_padded_size_is_refused(tiny_run):
    """As it was before fingerprints: in a checkpoint of the 18 letters or so, 64 fit."""
    train(tiny_run, on_step=stop_after(6))
    (Path(tiny_run.run_dir) / "tokenizer.json").unlink()
    change_state(newest(tiny_run), data=None)
    prepare_again(tiny_run, (LETTERS + "XYZ") * 100)
    refused(resumed(tiny_run), r"state\.json: another model, with vocab_size \d+, \d+ expected")


def test_the_same_folder_may_be_written_in_another_way(tiny_run, monkeypatch):
    folder = Path(tiny_run.train_data)
    monkeypatch.chdir(folder.parent)
    train(dataclasses.replace(tiny_run, train_data=folder.name))
    for name in (f"{folder.name}/", f"./{folder.name}", str(folder)):
        train(dataclasses.replace(resumed(tiny_run), train_data=name))
    with pytest.raises(ValueError, match=r"train_data was .*, now ''"):
        train(dataclasses.replace(resumed(tiny_run), train_data=""))


# --- weights to begin with


@pytest.mark.parametrize("given", ["run", "exported"])
def test_weights_for_another_alphabet_of_the_same_size_are_refused(tiny_run, tmp_path, given):
    from cs336_lib import hugging_face

    first = train(tiny_run)
    hugging_face.export(first.model, tmp_path / "exported", first.tokenizer)
    other = dataclasses.replace(
        tiny_run,
        train_data=str(tmp_path / "other"),
        init_from=str(tmp_path / given),
        run_dir=str(tmp_path / "tuned"),
    )
    prepare_again(other, OTHER_LETTERS * 100)
    sizes = {
        load_tokenizer(Path(c.train_data) / "tokenizer.json").vocab_size for c in (tiny_run, other)
    }
    assert len(sizes) == 1
    refused(other, rf"{given} \(.*was trained with another tokenizer than .*other .*has; pass")


def test_a_resumed_run_does_without_the_weights_it_began_with(tiny_run, tmp_path):
    base = dataclasses.replace(tiny_run, run_dir=str(tmp_path / "base"))
    train(base)
    tuned = dataclasses.replace(tiny_run, init_from=base.run_dir, n_layer=1, n_embd=32)
    straight = train(dataclasses.replace(tuned, run_dir=str(tmp_path / "straight")))
    assert not train(tuned, on_step=stop_after(6)).finished
    shutil.rmtree(base.run_dir)
    result = train(resumed(tuned))
    assert result.finished
    assert [row["train_loss"] for row in result.metrics] == [
        row["train_loss"] for row in straight.metrics
    ]
    assert (result.model.config.n_layer, result.model.config.n_embd) == (2, 16)
    refused(dataclasses.replace(resumed(tuned), init_from="elsewhere"), "init_from was")


def test_without_a_checkpoint_it_needs_them(tiny_run, tmp_path):
    base = dataclasses.replace(tiny_run, run_dir=str(tmp_path / "base"))
    train(base)
    tuned = dataclasses.replace(tiny_run, init_from=base.run_dir)
    train(tuned)
    shutil.rmtree(Path(tuned.run_dir) / "checkpoints")
    shutil.move(base.run_dir, tmp_path / "away")
    refused(resumed(tuned), "no such folder")
    shutil.move(tmp_path / "away", base.run_dir)
    assert train(resumed(tuned)).finished


# --- before anything is written


@pytest.mark.parametrize("part", ["train", "val"])
def test_an_id_outside_the_vocabulary_is_found_before_the_folder_is_made(tiny_run, part):
    shard = Path(tiny_run.train_data) / f"{part}_000000.bin"
    ids = np.array(open_shard(shard))
    write_shard(shard, np.where(np.arange(len(ids)) % 7 == 5, 60_000, ids))
    late = dataclasses.replace(tiny_run, eval_every=0)
    refused(late, rf"{part}_000000\.bin, token \d+: id 60000")
    write_shard(shard, ids)
    assert train(late).finished  # the same command


def test_validation_reads_ahead_what_it_will_read_and_no_more(tiny_run, monkeypatch):
    from cs336_lib.data.shards import ShardFile

    shard = Path(tiny_run.train_data) / "val_000000.bin"
    write_shard(shard, np.arange(100_000) % 5)
    read = 0
    honest = ShardFile.__getitem__

    def counted(self, wanted):
        nonlocal read
        read += (wanted.stop - wanted.start) * (self.path == shard)
        return honest(self, wanted)

    monkeypatch.setattr(ShardFile, "__getitem__", counted)
    train(dataclasses.replace(tiny_run, eval_every=0))
    fingerprint = -(-100_000 // 4096) * 4096
    once = 8 * 9  # 64 tokens in windows of 8, and their targets
    assert read == fingerprint + 2 * once


def test_validation_takes_no_more_at_once_than_training(tiny_run, monkeypatch):
    from cs336_lib.model import GPT

    sizes = set()
    honest = GPT.forward

    def forward(self, x, *rest):
        sizes.add(len(x))
        return honest(self, x, *rest)

    monkeypatch.setattr(GPT, "forward", forward)
    config = dataclasses.replace(tiny_run, batch_tokens=8 * 4, micro_batch_size=4096)
    train(dataclasses.replace(config, eval_tokens=8 * 40))
    assert max(sizes) == 4


# --- one run at a time

HOLD = """
import sys
from pathlib import Path
from cs336_lib.io import locked
with locked(Path(sys.argv[1], ".lock")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_in_a_folder_that_another_process_writes_to_is_refused(tiny_run):
    train(tiny_run, on_step=stop_after(6))
    command = [sys.executable, "-c", HOLD, tiny_run.run_dir]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as other:
        assert other.stdout.readline() == "held\n"
        refused(resumed(tiny_run), "another process holds this lock")
        other.kill()
    assert train(resumed(tiny_run)).finished


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


# --- a finished run whose metrics are lost


def test_the_validation_loss_of_a_run_without_metrics(tiny_run):
    first = train(tiny_run)
    (Path(tiny_run.run_dir) / "metrics.jsonl").unlink()
    again = train(resumed(tiny_run))
    assert again.metrics == []
    assert again.val_loss == first.val_loss


def test_a_run_that_has_not_validated_says_so(tiny_run):
    result = train(tiny_run, on_step=stop_after(2))
    with pytest.raises(ValueError, match="no validation loss was measured yet; continue it with"):
        _ = result.val_loss
