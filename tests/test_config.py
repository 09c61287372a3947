import dataclasses

import pytest

from cs336_lib.config import CHANGEABLE, PRESETS, GPTConfig, TrainConfig


def test_default_is_gpt2_124m():
    config = GPTConfig()
    assert (config.n_layer, config.n_head, config.n_embd) == (12, 12, 768)
    assert (config.block_size, config.vocab_size) == (1024, 50257)
    assert config.padded_vocab_size == 50304


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n_head", 5, "does not divide n_embd"),
        ("n_layer", 0, "at least 1"),
        ("block_size", -1, "at least 1"),
        ("dropout", 1.0, "dropout"),
        ("max_steps", 0, "max_steps"),
        ("batch_tokens", 1000, "try 1024"),
        ("learning_rate", 0.0, "learning_rate"),
        ("learning_rate", float("nan"), "learning_rate"),
        ("min_learning_rate", 1.0, "min_learning_rate"),
        ("beta2", 1.0, "beta2"),
        ("warmup_steps", 10**9, "warmup_steps"),
        ("weight_decay", float("inf"), "weight_decay"),
        ("seed", -1, "seed"),
        ("keep_checkpoints", 0, "keep_checkpoints"),
    ],
)
def test_a_bad_value_is_named_in_one_line(field, value, message):
    with pytest.raises(ValueError, match=message) as error:
        TrainConfig(**{field: value})
    assert "\n" not in str(error.value)


def test_conflicts_name_what_changes_the_result_and_nothing_else():
    saved = dataclasses.asdict(TrainConfig())
    assert TrainConfig(run_dir="elsewhere", device="cpu", micro_batch_size=3).conflicts(saved) == []
    assert TrainConfig(seed=7).conflicts(saved) == ["seed was 1337, now 7"]


def test_changeable_names_are_fields():
    assert set(CHANGEABLE) <= {field.name for field in dataclasses.fields(TrainConfig)}


def test_presets_describe_themselves():
    for name, (description, config) in PRESETS.items():
        assert description.endswith("."), name
        assert config.batch_tokens % config.block_size == 0
