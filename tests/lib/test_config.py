import dataclasses

import pytest

from cs336_lib.config import BOUNDS, CHANGEABLE, PATHS, PRESETS, ConfigError, GPTConfig, TrainConfig
from cs336_lib.training.job import check
from cs336_lib.training.run_folder import conflicts


def test_default_is_gpt2_124m():
    config = GPTConfig()
    assert (config.n_layer, config.n_head, config.n_embd) == (12, 12, 768)
    assert (config.block_size, config.vocab_size) == (1024, 50257)
    assert config.padded_vocab_size == 50304


BAD_VALUES = [
    ("n_head", 5, "does not divide n_embd"),
    ("dropout", 1.0, "dropout is 1.0; a number of at least 0 and below 1 expected"),
    ("max_steps", 2**43, "max_steps is 8796093022208"),
    ("batch_tokens", 1000, "try 1024"),
    ("batch_tokens", 1024 * (2**20 + 1), "at most 1048576 expected"),
    ("learning_rate", 0.0, "learning_rate > 0 expected"),
    ("min_learning_rate", 1.0, "min_learning_rate <= learning_rate"),
    ("warmup_steps", 10**9, "more than max_steps"),
    ("schedule", "step", "one of cosine, linear"),
    ("initial_batch_tokens", 1024, "a growing batch needs both"),
]


def test_a_bad_value_is_named_in_one_line():
    for field, value, message in BAD_VALUES:
        with pytest.raises(ValueError, match=message) as error:
            TrainConfig(**{field: value})
        assert "\n" not in str(error.value)


def test_every_mistake_is_named_at_once():
    fields = {"n_head": 5, "batch_tokens": 1000, "warmup_steps": 10**9, "dropout": 1.5, "seed": -1}
    with pytest.raises(ConfigError) as error:
        TrainConfig(**fields)
    lines = str(error.value).splitlines()
    assert [line.split()[0] for line in lines] == [
        "dropout",
        "seed",
        "batch_tokens",
        "warmup_steps",
    ]
    with pytest.raises(ConfigError) as error:
        TrainConfig(**fields | {"dropout": 0.0})  # so that nothing else hides the heads
    assert "n_head 5 does not divide n_embd 768" in str(error.value).splitlines()[1]


def test_a_run_names_every_mistake_at_once():
    with pytest.raises(ConfigError) as error:
        check(TrainConfig(val_data="elsewhere", hellaswag="some.jsonl", tokenizer="char"))
    lines = str(error.value).splitlines()
    assert [line.split()[0] for line in lines] == ["run_dir", "val_data", "hellaswag"]
    check(TrainConfig(run_dir="new"))


def test_conflicts_name_what_changes_the_result_and_nothing_else():
    saved = dataclasses.asdict(TrainConfig())
    elsewhere = TrainConfig(run_dir="elsewhere", device="cpu", micro_batch_size=3)
    assert conflicts(elsewhere, saved) == []
    assert conflicts(TrainConfig(seed=7), saved) == ["seed was 1337, now 7"]


def test_names_in_tables_are_fields():
    fields = {field.name for kind in (TrainConfig, GPTConfig) for field in dataclasses.fields(kind)}
    assert {*CHANGEABLE, *BOUNDS, *PATHS} <= fields


def test_presets_describe_themselves():
    for name, (description, config) in PRESETS.items():
        assert description.endswith("."), name
        assert config.batch_tokens % config.block_size == 0
