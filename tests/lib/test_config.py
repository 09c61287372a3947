import dataclasses

import pytest

from cs336_lib.config import TrainConfig
from cs336_lib.training.run_folder import conflicts

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


def test_conflicts_name_what_changes_the_result_and_nothing_else():
    saved = dataclasses.asdict(TrainConfig())
    elsewhere = TrainConfig(run_dir="elsewhere", device="cpu", micro_batch_size=3)
    assert conflicts(elsewhere, saved) == []
    assert conflicts(TrainConfig(seed=7), saved) == ["seed was 1337, now 7"]
