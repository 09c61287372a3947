"""What pages and covers draw from records is what the code makes of them."""

import hashlib
import math
import shlex
from pathlib import Path

import pytest
import torch

from cs336_course.pages.errata import story as errata
from cs336_course.pages.low_bits import story as low_bits
from cs336_course.pages.recipe_of_today import story as today
from cs336_course.pages.strides_and_views import pictures as strides
from cs336_course.pages.what_a_model_costs import story as costs
from cs336_course.shared import letter_gpt
from cs336_lib import accounting
from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import DATA
from cs336_lib.data.loader import open_data

ROOT = Path(__file__).parents[2]


def test_the_cover_of_02_shows_the_losses_that_the_page_prints():
    printed = (ROOT / "notebooks/02_strides_and_views.ipynb").read_text()
    for name, loss in zip(("transpose first", "view alone     "), strides.LOSSES, strict=True):
        assert f"{name} validation loss {loss}" in printed


def test_the_losses_on_the_cover_of_the_errata_are_those_of_the_readers():
    letters = letter_gpt.letters()[0][:200_000]
    misread = torch.stack([letters, *[torch.zeros_like(letters)] * 3], 1).flatten()
    for name, ids in (("letters", letters), ("misread letters", misread)):
        _, losses = errata.train_reader(ids, steps=40)
        means = torch.tensor(losses).view(2, 20).mean(1).tolist()
        for mean, recorded in zip(means, errata.READERS[name], strict=False):
            assert math.isclose(mean, recorded, abs_tol=0.03), name


def test_the_runs_of_the_recipe_are_complete_and_their_best_rates_lie_inside():
    runs = today.recorded()
    for setting in today.SETTINGS:
        assert all(loss > 1 for loss in today.ladder(runs, setting).values())
        for changes in ((), tuple(today.CHANGES), *map(today.without, today.CHANGES)):
            swept, best = today.sweep(runs, setting, changes), today.best(runs, setting, changes)
            assert min(r.adamw for r in swept) < best.adamw < max(r.adamw for r in swept)
            assert [r["seed"] for r in today.eight(runs, setting, changes)] == list(today.SEEDS)


def test_the_runs_of_the_scaling_law_are_counted_as_their_commands_say():
    stream = open_data("", "", "char")[0]
    for run in costs.runs():
        words = shlex.split(run.command)
        flags = dict(zip(words[3::2], words[4::2], strict=True))
        assert words[:3] == ["cs336", "train", "shakespeare-char"]
        assert int(flags["--n-embd"]) == run.n_embd
        assert int(flags["--max-steps"]) * int(flags["--batch-tokens"]) == run.tokens
        config = GPTConfig(64, 62, run.n_layer, 2, run.n_embd)
        assert run.parameters == accounting.count_parameters(config)
        assert run.flops == run.tokens * accounting.train_flops_per_token(config)
        assert run.flops == pytest.approx(run.budget, rel=0.02)
        assert run.tokens < 4 * len(stream)


def test_the_shipped_matrix_is_what_its_description_and_the_readme_say():
    about, blocks = low_bits.shipped_blocks()
    assert hashlib.sha256(blocks.tobytes()).hexdigest() == about["sha256"]
    assert f"{blocks.nbytes:,} | `{about['sha256']}`" in (DATA / "README.md").read_text()
    assert "Apache License" in (low_bits.SHIPPED / "LICENSE").read_text()
    assert about["license"] == "apache-2.0"
