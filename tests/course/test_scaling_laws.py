"""Test scaling laws and their fits, the gradient noise, and the cost of a token."""

import shlex
from dataclasses import replace

import numpy as np
import pytest

from cs336_course.pages.what_a_model_costs import story
from cs336_course.pages.what_a_model_costs.story import (
    FITS,
    Rental,
    ScalingLaw,
    ScalingRun,
    decode_cost,
    decode_seconds,
    training_cost,
    weight_bytes,
)
from cs336_course.shared import published_runs
from cs336_lib import accounting
from cs336_lib.accounting import Architecture, count_parameters
from cs336_lib.bill.models import model
from cs336_lib.config import GPTConfig
from cs336_lib.data.loader import open_data
from cs336_lib.system.hardware import DATASHEET

BUDGETS = (1e19, 1e20, 1e21, 1e22)


def made_runs(law: ScalingLaw) -> list[ScalingRun]:
    """Runs without noise whose losses follow a law, around the best size of each budget."""
    made = []
    for budget in BUDGETS:
        for times in (0.25, 0.5, 1, 2, 4):
            n = int(law.optimum(budget)[0] * times)
            d = int(budget / 6 / n)
            made.append(ScalingRun(budget, 1, 1, n, n, d, 6 * n * d, law.loss(n, d), ""))
    return made


@pytest.mark.parametrize(
    ("name", "exponent", "billions", "tolerance"),
    [
        ("hoffmann-unrounded", 0.46, 40, 0.02),  # Hoffmann et al. 2022, table 2 and figure 4
        ("besiroglu", 0.51, 70, 0.05),  # Besiroglu et al. 2024; Chinchilla itself has 70B
    ],
)
def test_corrected_fits_give_the_published_optimum(name, exponent, billions, tolerance):
    law, budget = FITS[name], 5.76e23  # of Gopher and Chinchilla
    parameters, tokens = law.optimum(budget)
    assert round(law.exponent, 2) == exponent
    assert parameters == pytest.approx(billions * 1e9, rel=tolerance)
    assert accounting.six_n_d(parameters, tokens) == pytest.approx(budget)
    sizes = parameters * np.linspace(0.9, 1.1, 21)
    assert np.argmin([law.loss(n, budget / 6 / n) for n in sizes]) == 10


def test_both_fits_recover_a_known_law():
    law = FITS["besiroglu"]
    runs = made_runs(law)
    found = story.fit(runs)
    assert (found.alpha, found.beta) == pytest.approx((law.alpha, law.beta), rel=1e-3)
    assert found.e == pytest.approx(law.e, rel=1e-3)
    assert story.size_exponent(runs) == pytest.approx(law.exponent, abs=0.01)
    for optimum in story.isoflop(runs):
        assert optimum.parameters == pytest.approx(law.optimum(optimum.budget)[0], rel=0.1)
    low, high = story.exponent_interval(runs, rounds=50)
    assert low < law.exponent < high


def test_losses_without_a_minimum_are_refused():
    runs = made_runs(FITS["besiroglu"])
    with pytest.raises(ValueError, match="no minimum"):
        story.isoflop([replace(run, val_loss=-run.val_loss) for run in runs])
    with pytest.raises(ValueError, match="2 sizes; at least 3"):
        story.exponent_interval(runs[:2])


def test_shipped_runs_are_counted_as_their_commands_say():
    stream = open_data("", "", "char")[0]
    for run in story.runs():
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


def test_shipped_budgets_have_a_best_size_inside_their_range():
    runs = story.runs()
    optima = story.isoflop(runs)
    assert len(optima) >= 4
    for optimum in optima:
        sizes = sorted(run.parameters for run in runs if run.budget == optimum.budget)
        assert len(sizes) >= 5
        assert sizes[0] < optimum.parameters < sizes[-1]


LLAMA_2_7B = Architecture(32, 4096, 32, 32, 128, 32000, 4096, 11008)


def test_decoding_reads_the_bytes_that_gpt_fast_measured():
    # gpt-fast's README: 104.9 tokens/s at 1397.31 GB/s for Llama 2 7B in bf16, one sequence
    a100 = DATASHEET["a100"]
    rental = Rental(a100, price=1, bandwidth_share=1397.31e9 / a100.bandwidth)
    seconds = decode_seconds(LLAMA_2_7B, rental, batch=1, context=100)
    assert 1 / seconds == pytest.approx(104.9, rel=0.01)


def test_training_costs_what_deepseek_states():
    run = published_runs.runs()["deepseek-v3"]
    assert run.convention == "causal"
    # An H800 computes like an H100
    rental = Rental(DATASHEET["h100"], price=2, mfu=run.mfu, convention="causal")
    stated = 2 * run.stated["device_hours"] / run.tokens * 1e6
    assert training_cost(run.architecture, rental, run.seq) == pytest.approx(stated, rel=0.05)


def test_a_large_batch_is_limited_by_compute_and_must_fit():
    rental = Rental(DATASHEET["h100"], price=2, devices=8)
    a = model("llama3-8b").architecture
    costs = [decode_cost(a, rental, batch, context=1024) for batch in (1, 16, 256)]
    assert costs == sorted(costs, reverse=True)
    assert costs[1] == pytest.approx(costs[0] / 16, rel=0.15)  # the weights are read once
    assert training_cost(a, rental, 1) == pytest.approx(3 * decode_compute(a, rental), rel=1e-3)
    with pytest.raises(ValueError, match="the devices have 640; use more devices"):
        decode_seconds(a, rental, batch=10_000, context=8192)


def decode_compute(a: Architecture, rental: Rental) -> float:
    """Dollars per million tokens of a forward pass without memory."""
    fast = replace(rental, device=replace(rental.device, bandwidth=1e20))
    return decode_cost(a, fast, batch=8, context=1)


def test_a_batch_reads_more_experts_than_a_token():
    a = model("mixtral-8x7b").architecture
    assert weight_bytes(a, 1) < 0.5 * weight_bytes(a, 64)
    assert weight_bytes(a, 64) == pytest.approx(2 * count_parameters(a), rel=0.01)
