"""The small models of the recipe of today, their recorded runs, and the statistics of pairs."""

import math
import runpy
from pathlib import Path

import pytest
import torch

from cs336_course.pages.recipe_of_today import story as today
from cs336_course.pages.recipe_of_today.story import CHANGES, SIZES, Rates
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

ROOT = Path(__file__).parents[2]
TINY = today.Size(n_layer=2, n_head=2, n_embd=16, steps=20)
ALL = tuple(CHANGES)


def windows() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(10, (3, today.BLOCK + 1), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def test_without_changes_it_is_the_librarys_gpt():
    mine = today.GPT(TINY, 10)
    theirs = GPT(GPTConfig(today.BLOCK, 10, TINY.n_layer, TINY.n_head, TINY.n_embd))
    weights = {n.removeprefix("transformer."): p for n, p in theirs.named_parameters()}
    for name, p in mine.named_parameters():
        p.data = weights.pop(name)[: p.size(0)].detach()
    assert not weights
    torch.testing.assert_close(mine(*windows()), theirs(*windows()))


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_changes_a_run(change):
    before = () if change != "cap" else ("untied",)
    rates = Rates(0.01, 0.05)
    plain, changed = (today.train(TINY, c, rates, 0) for c in (before, (*before, change)))
    assert plain != changed


def test_muon_gets_the_matrices_of_the_blocks():
    model = today.GPT(TINY, 10, ALL)
    blocks, table, head = today.make_optimizer(model, Rates(0.01, 0.02, 5.0)).param_groups
    assert (len(blocks["params"]), blocks["lr"]) == (4 * TINY.n_layer, 0.02)
    assert (table["params"], table["lr"]) == ([model.wte.weight], 0.05)
    assert (head["params"], head["lr"]) == ([model.lm_head.weight], 0.01)
    assert "muon_momentum" in blocks


def test_schedules_at_their_ends_and_where_two_pieces_meet():
    cosine = [today.share(step, 100, frozenset()) for step in range(100)]
    assert cosine[4] == cosine[5] == 1
    assert (cosine[0], cosine[-1]) == (pytest.approx(0.2), pytest.approx(0.1))
    line = [today.share(step, 100, frozenset({"linear"})) for step in range(100)]
    assert line[5:41] == [1.0] * 36
    assert (line[41], line[-1]) == (pytest.approx(59 / 60), pytest.approx(1 / 60))


@pytest.mark.parametrize(("t", "p"), [(2.776445, 0.05), (4.604095, 0.01), (2.131847, 0.1)])
def test_p_values_of_students_table(t, p):
    spread = torch.tensor([-2.0, -1, 0, 1, 2], dtype=torch.float64)
    differences = (spread + t * spread.std() / math.sqrt(5)).tolist()
    assert today.paired_p_value(differences) == pytest.approx(p, abs=1e-6)
    assert today.paired_p_value([-d for d in differences]) == pytest.approx(p, abs=1e-6)
    assert today.paired_p_value([0.0] * 5) == 1


def test_a_change_must_help_and_a_removal_may_not_hurt():
    helps = (-0.1, -0.11, -0.1, -0.1, -0.09)
    for change, kept in (("rope", [True, False, False]), ("bare", [True, True, False])):
        every = (helps, (-1, 1, 0, 0, 0), tuple(-d for d in helps))
        pairs = [today.Pair(change, (), Rates(0.1), (0.0,) * 5, d, kept=False) for d in every]
        assert [pair.passes for pair in pairs] == kept


def test_the_recorded_path_follows_from_the_recorded_losses():
    runs, script = today.recorded(), runpy.run_path(str(ROOT / "data/make_today_runs.py"))
    base: tuple[str, ...] = ()
    pairs = today.pairs(runs, "small")
    assert [pair.change for pair in pairs] == [*CHANGES, "muon"]
    for pair in pairs:
        assert pair.base == base
        assert pair.kept == script["verdict"](pair.change, pair.before, pair.after)
        base = (*base, pair.change) if pair.kept else base
    assert base == today.recipe(runs)


@pytest.mark.parametrize("size", SIZES)
def test_the_four_corners_share_their_seeds_and_two_are_the_pair_of_the_path(size):
    runs = today.recorded()
    corners = today.crossed(runs, size)
    assert {len(losses) for losses in corners.values()} == {5}
    pair = next(found for found in today.pairs(runs, size) if found.change == "qk_norm")
    assert today.sides(corners)["both"].differences == pair.differences
