"""The small models of notebook 09b, their recorded runs, and the statistics of pairs."""

import math
import runpy
from pathlib import Path

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.pages.recipe_of_today import pictures as plots
from cs336_course.pages.recipe_of_today import recipe_of_today as today
from cs336_course.pages.recipe_of_today import today_runs
from cs336_course.pages.recipe_of_today.recipe_of_today import CHANGES, SIZES, Rates
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

ROOT = Path(__file__).parents[2]
TINY = today.Size(n_layer=2, n_head=2, n_embd=16, steps=20)
ALL = tuple(CHANGES)
PAIR = today_runs.Pair("rope", (), Rates(0.1), (2.0, 2.1, 2.2), (1.9, 2.2, 1.8), kept=True)


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
def test_every_change_changes_the_second_step(change):
    def losses(changes):
        model = today.GPT(TINY, 10, changes)
        return torch.tensor(today.train(TINY, changes, Rates(0.01, 0.05), 0)[1]), model

    before = () if change != "cap" else ("untied",)
    (plain, _), (changed, model) = losses(before), losses((*before, change))
    assert (plain != changed).any()
    assert change in model.changes


def test_zeros_give_all_tokens_the_same_chance():
    model = today.GPT(TINY, 10, ALL)
    assert model(*windows()).item() == pytest.approx(math.log(10), abs=1e-6)
    x = torch.randn(1, 5, TINY.n_embd)
    assert all(torch.equal(block(x), x) for block in model.h)


def test_a_rotated_score_depends_on_the_distance_only():
    q, k = today.rotate(torch.ones(6, 8)), today.rotate(torch.ones(6, 8))
    scores = q @ k.T
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])
    assert not torch.allclose(scores[0, 0], scores[0, 3])


def test_a_normalized_score_forgets_lengths():
    attention = today.Attention(TINY, frozenset({"qk_norm"}))
    x = torch.randn(2, 5, TINY.n_embd)
    before = attention(x)
    with torch.no_grad():
        attention.c_attn.weight[: 2 * TINY.n_embd] *= 7
        attention.c_attn.bias[: 2 * TINY.n_embd] *= 7
    torch.testing.assert_close(attention(x), before, rtol=1e-3, atol=1e-4)


def test_muon_gets_the_matrices_of_the_blocks():
    model = today.GPT(TINY, 10, ALL)
    blocks, table, head = today.make_optimizer(model, Rates(0.01, 0.02, 5.0)).param_groups
    assert (len(blocks["params"]), blocks["lr"]) == (4 * TINY.n_layer, 0.02)
    assert (table["params"], table["lr"]) == ([model.wte.weight], 0.05)
    assert (head["params"], head["lr"]) == ([model.lm_head.weight], 0.01)
    assert "muon_momentum" in blocks
    plain = today.make_optimizer(today.GPT(TINY, 10), Rates(0.01)).param_groups
    assert [group["weight_decay"] for group in plain] == [0.1, 0.1, 0.1, 0.0]
    assert not any("muon_momentum" in group for group in plain)


def test_schedules_at_their_ends_and_where_two_pieces_meet():
    cosine = [today.share(step, 100, frozenset()) for step in range(100)]
    assert cosine[0] == pytest.approx(0.2)
    assert cosine[4] == cosine[5] == 1
    assert cosine[-1] == pytest.approx(0.1)
    line = [today.share(step, 100, frozenset({"linear"})) for step in range(100)]
    assert line[5:41] == [1.0] * 36
    assert line[41] == pytest.approx(59 / 60)
    assert line[-1] == pytest.approx(1 / 60)


def test_a_run_can_be_repeated():
    first, second = (today.train(TINY, ALL, Rates(0.01, 0.02), 3) for _ in range(2))
    assert first == second
    assert len(first[1]) == 10
    assert today.train(TINY, ALL, Rates(0.01, 0.02), 4) != first


@pytest.mark.parametrize(("t", "p"), [(2.776445, 0.05), (4.604095, 0.01), (2.131847, 0.1)])
def test_p_values_of_students_table(t, p):
    spread = torch.tensor([-2.0, -1, 0, 1, 2], dtype=torch.float64)
    differences = (spread + t * spread.std() / math.sqrt(5)).tolist()
    assert today_runs.paired_p_value(differences) == pytest.approx(p, abs=1e-6)
    assert today_runs.paired_p_value([-d for d in differences]) == pytest.approx(p, abs=1e-6)
    assert today_runs.paired_p_value([0.0] * 5) == 1
    with pytest.raises(ValueError, match="4 differences"):
        today_runs.paired_p_value(differences[:4])


def test_the_interval_reaches_0_where_p_is_5_percent():
    spread = torch.tensor([-2.0, -1, 0, 1, 2], dtype=torch.float64)
    after = (spread + 2.776445 * spread.std() / math.sqrt(5)).tolist()
    pair = today_runs.Pair("rope", (), Rates(0.1), (0.0,) * 5, after, kept=False)
    assert pair.p == pytest.approx(0.05, abs=1e-6)
    assert pair.half_width == pytest.approx(pair.mean, rel=1e-3)


def test_a_p_value_is_never_told_as_0():
    assert today_runs.told(0.01951) == "p = 0.0195"
    assert today_runs.told(0.00004) == "p < 0.0001"
    assert today_runs.told(0.0004, 3) == "p < 0.001"


def test_the_race_is_the_one_of_the_benchmark():
    script = runpy.run_path(str(ROOT / "data/make_today_runs.py"))
    assert today_runs.recorded()["race"] == script["race"]()


def test_wrong_sides_are_counted_against_the_mean():
    assert today_runs.wrong_sides([2.0, 1.0], [1.5, 0.5]) == (1, 4)
    assert today_runs.wrong_sides([1.5, 0.5], [2.0, 1.0]) == (1, 4)
    assert today_runs.wrong_sides([2.0, 3.0], [1.0, 1.5]) == (0, 4)


def test_the_recorded_path_follows_from_the_recorded_losses():
    runs, script = today_runs.recorded(), runpy.run_path(str(ROOT / "data/make_today_runs.py"))
    base: tuple[str, ...] = ()
    pairs = today_runs.pairs(runs, "small")
    assert [pair.change for pair in pairs] == [*CHANGES, "muon"]
    for pair in pairs:
        assert pair.base == base
        assert pair.kept == script["verdict"](pair.change, pair.before, pair.after)
        base = (*base, pair.change) if pair.kept else base
    assert base == today_runs.recipe(runs)


def test_the_best_of_each_sweep_lies_inside():
    runs = today_runs.recorded()
    recipe = today_runs.recipe(runs)
    muon = next(pair.base for pair in today_runs.pairs(runs, "small") if pair.change == "muon")
    for changes in ((), (*muon, "muon")):
        found = today_runs.sweep(runs, "small", changes)
        best = min(found, key=found.__getitem__)
        rates = [(rate.muon or rate.adamw) for rate in found]
        assert min(rates) < (best.muon or best.adamw) < max(rates), changes
    assert set(recipe) < set(CHANGES)


def test_the_page_has_five_seeds_of_all_that_it_shows():
    runs = today_runs.recorded()
    recipe, steps = today_runs.recipe(runs), SIZES["small"].steps
    shown = [("small", (), steps), ("small", ("muon",), steps), ("large", (), 300)]
    shown += [("large", recipe, 300)]
    shown += [("small", recipe, steps // part) for part in (1, 2, 3, 4, 6)]
    for size, changes, count in shown:
        assert len(today_runs.losses(runs, size, changes, count)) == 5, (size, changes, count)


def test_the_published_steps_descend_and_the_ten_seeds_have_the_published_mean():
    for rows in (today_runs.LADDER, today_runs.TRACK_3):
        assert [row.steps for row in rows] == sorted((row.steps for row in rows), reverse=True)
    mean = sum(today_runs.TEN_SEEDS) / 10
    assert round(mean, 4) == next(r.loss for r in today_runs.TRACK_3 if r.seeds == 10)


def pair(change: str, *differences: float) -> today_runs.Pair:
    return today_runs.Pair(change, (), Rates(0.1), (0.0,) * 5, differences, kept=False)


HELPS, HURTS, UNSURE = (
    (-0.1, -0.11, -0.1, -0.1, -0.09),
    (0.1, 0.11, 0.1, 0.1, 0.09),
    (-1, 1, 0, 0, 0),
)


def test_a_change_must_help_and_a_removal_may_not_hurt():
    assert [pair("rope", *d).passes for d in (HELPS, UNSURE, HURTS)] == [True, False, False]
    assert [pair("bare", *d).passes for d in (HELPS, UNSURE, HURTS)] == [True, True, False]


def test_the_two_trials_of_a_change_have_two_names():
    pairs = [pair("muon", *HURTS), pair("cap", *HURTS), pair("muon", *HELPS)]
    names = today_runs.names(pairs, {"muon": "Muon", "cap": "soft cap"})
    assert names == ["Muon, first trial", "soft cap", "Muon, second trial"]


def test_forest_fills_the_marker_of_what_the_rule_keeps_and_says_so():
    pairs = [pair("rope", *HELPS), pair("cap", *HURTS)]
    axes = plots.forest({"a": pairs, "b": pairs[::-1]}, ["RoPE", "soft cap"], "t").axes[0]
    means = [line for line in axes.lines if line.get_marker() in ("o", "s")]
    assert [line.get_markerfacecolor() != "none" for line in means] == [True, False, False, True]
    assert [line.get_xdata()[0] for line in means] == pytest.approx([-0.1, 0.1, 0.1, -0.1])
    told = [text.get_text() for text in axes.texts]
    assert told == ["a", "kept", "dropped", "b", "dropped", "kept"]


@pytest.mark.parametrize("size", SIZES)
def test_the_four_corners_share_their_seeds_and_two_are_the_pair_of_the_path(size):
    runs = today_runs.recorded()
    corners = today_runs.crossed(runs, size)
    assert {len(losses) for losses in corners.values()} == {5}
    rows = [row for row in runs["crossed"] if row["size"] == size]
    assert sorted(row["seed"] for row in rows) == sorted([*range(5)] * 2)
    assert {row["steps"] for row in rows} == {SIZES[size].steps}
    pair = next(found for found in today_runs.pairs(runs, size) if found.change == "qk_norm")
    sides = today_runs.sides(corners)
    assert sides["both"].differences == pair.differences
    norm, rate = (
        sides[name].mean for name in ("the norm, at rate 0.003", "the rate, with the norm")
    )
    assert norm + rate == pytest.approx(pair.mean)


def test_an_edit_changes_the_model_that_is_trained():
    def silence(model):
        model.lm_head.weight.data.zero_()

    plain, edited = (today.train(TINY, (), Rates(0.0), 0, 10, edit) for edit in (None, silence))
    assert plain != edited
    assert edited[0] == pytest.approx(math.log(62), abs=1e-3)


def test_sign_flips_mark_what_is_as_far():
    axes = plots.sign_flips([-3, -1, 1, 3], -3, "t").axes[0]
    near, far = (line.get_xdata().tolist() for line in axes.lines[:2])
    assert (near, far) == ([-1, 1], [-3, 3])


def test_figures_draw():
    plots.one_seed((2, 3), (1, 2.5), ("without", "with"), "t")
    plots.sweep({"a": {0.1: 2.0, 0.2: 1.0}}, "t")
    plots.crossed({"a": {(False, 1): [2], (False, 2): [3], (True, 1): [1], (True, 2): [2]}}, "t")
    plots.budgets({"a": {0: [2.0, 2.1], 10: [2.2], 20: [1.9]}}, "t")
    groups = {"a": today_runs.LADDER[:1], "b": today_runs.TRACK_3}
    drawing = plots.published(groups, "t")
    bars = drawing.axes[0].patches[1:]
    assert [bar.get_width() for bar in bars] == [row.steps for row in today_runs.TRACK_3]
    assert [round(bar.get_y() + 0.35) for bar in bars] == [3, 4, 5, 6]  # below two headings


def test_the_cover_has_a_line_for_each_seed_and_the_recipe_of_today_ends_lower(monkeypatch):
    monkeypatch.setattr(plots, "show_cover", lambda: None)
    plots.cover()
    ends = [line.get_ydata()[-1] for line in plt.gcf().axes[0].lines]
    old, new = ends[:5], ends[5:]
    assert len(new) == 5
    assert max(new) < min(old)
