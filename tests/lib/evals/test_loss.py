import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from cs336_lib import cli
from cs336_lib.data.loader import Loader
from cs336_lib.data.shards import TokenStream
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.evals.loss import Score, score, validation_loss
from cs336_lib.model import GPT
from cs336_lib.system.processes import Place
from cs336_lib.training.loop import train

CPU = Place(torch.device("cpu"))


@pytest.fixture
def loader(tiny_config):
    ids = np.random.default_rng(0).integers(0, 50, 500).astype(np.uint16)
    return Loader(TokenStream([ids], ["val"]), 16, 50, seed=0)


def test_it_is_the_mean_over_the_same_windows(tiny_config, loader):
    model = GPT(tiny_config)
    x, y = loader.windows(loader.validation_starts(480))
    with torch.no_grad():
        expected = model.eval()(x, y).item()
    model.train()
    for micro in (1, 4, 7, 100):
        assert validation_loss(model, loader, 480, micro, CPU) == pytest.approx(expected, abs=1e-5)
    assert model.training


def test_the_token_between_documents_is_no_text(tiny_config):
    made = GPT2Tokenizer()
    row = [made.end_of_text, *made.encode("yes").tolist(), made.end_of_text]
    row += made.encode("no").tolist()
    ids = np.array(row * 20 + [made.end_of_text], dtype=np.uint16)
    tiny = dataclasses.replace(tiny_config, vocab_size=made.vocab_size)

    def scored(ids: np.ndarray) -> Score:
        loader = Loader(TokenStream([ids], ["val"]), 16, made.vocab_size, seed=0)
        return score(GPT(tiny), loader, made, 80, 4, CPU)

    result = scored(ids)
    assert (result.tokens, result.bytes) == (80, 20 * len("yesno"))
    nats = result.loss * result.tokens  # of all tokens, those between documents too
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / result.bytes)
    empty = scored(np.full(81, made.end_of_text, dtype=np.uint16))
    assert (empty.bytes, empty.bits_per_byte) == (0, math.inf)
    assert Score(loss=1e4, tokens=1, bytes=1).perplexity == math.inf


def test_data_of_another_tokenizer_is_not_evaluated(tiny_run, tmp_path, capsys):
    train(dataclasses.replace(tiny_run, max_steps=3))
    capsys.readouterr()
    made = tmp_path / "run" / "tokenizer.json"
    alphabet = json.loads(made.read_text())["alphabet"]
    for other in (alphabet.replace("T", "U"), alphabet[:-1]):
        changed = json.dumps({"name": "char", "alphabet": other})
        (tmp_path / "prepared" / "tokenizer.json").write_text(changed)
        with pytest.raises(SystemExit) as ended:
            cli.main(["eval", "--run-dir", tiny_run.run_dir, "--device", "cpu"])
        out, err = capsys.readouterr()
        assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
        assert "was trained with tokenizer char with" in err
