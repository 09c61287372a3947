"""Ours against torch's own, in every way they are used; and Newton-Schulz against the SVD."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import for_each
from torch import nn

from cs336_course.shared import short_optimizers
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

PAIRS = {
    "SGD": (
        partial(short_optimizers.SGD, lr=0.05),
        partial(torch.optim.SGD, lr=0.05),
    ),
    "SGD with decay": (
        partial(short_optimizers.SGD, lr=0.05, weight_decay=0.1),
        partial(torch.optim.SGD, lr=0.05, weight_decay=0.1),
    ),
    "Momentum": (
        partial(short_optimizers.Momentum, lr=0.01, momentum=0.9),
        partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    ),
    "AdaGrad": (
        partial(short_optimizers.AdaGrad, lr=0.02),
        partial(torch.optim.Adagrad, lr=0.02),
    ),
    "RMSProp": (
        partial(short_optimizers.RMSProp, lr=1e-3),
        partial(torch.optim.RMSprop, lr=1e-3),
    ),
    "Adam": (
        partial(short_optimizers.Adam, lr=1e-3, betas=(0.9, 0.95)),
        partial(torch.optim.Adam, lr=1e-3, betas=(0.9, 0.95)),
    ),
    "Adam with decay": (
        partial(short_optimizers.Adam, lr=1e-3, weight_decay=0.1),
        partial(torch.optim.Adam, lr=1e-3, weight_decay=0.1),
    ),
    "AdamW": (
        partial(short_optimizers.AdamW, lr=1e-3, weight_decay=0.1),
        partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1),
    ),
}

GPT_SHAPE = GPTConfig(block_size=8, vocab_size=16, n_layer=2, n_head=2, n_embd=16)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: sharing them out only costs
    yield
    torch.set_num_threads(before)


def small_gpt():
    torch.manual_seed(0)
    return GPT(GPT_SHAPE).double()


def groups(model):
    """Two groups with settings of their own."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices}, {"params": vectors, "lr": 0.003}]


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        ids = torch.randint(0, 16, (4, 9), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(ids[:, :-1], ids[:, 1:].long()).backward()
        # The loss doesn't depend on a key's bias. Its gradient is rounding noise, which differs
        # between CPUs and which Adam turns into full steps.
        for block in model.transformer.h:
            block.attn.c_attn.bias.grad[16:32] = 0
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_equals_torch_over_100_steps_of_a_gpt():
    def compare(ours, torchs):
        a, b = small_gpt(), small_gpt()
        start = nn.utils.parameters_to_vector(a.parameters()).detach().clone()
        end = train(a, ours(a.parameters()), 100)
        assert (end - train(b, torchs(b.parameters()), 100)).abs().max() < 1e-6
        assert (end - start).abs().max() > 1e-2

    for_each(PAIRS, compare)


def test_equals_torch_in_fp32():
    def compare(ours, torchs):
        # A GPT's key biases have only rounding noise as gradient, which some rules scale up.
        ends = []
        for make in (ours, torchs):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
            optimizer = make(model.parameters())
            for _ in range(100):
                x = torch.randn(16, 8)
                optimizer.zero_grad()
                F.mse_loss(model(x), x.sum(1, keepdim=True).sin()).backward()
                optimizer.step()
            ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        assert torch.allclose(*ends, rtol=1e-5, atol=1e-5)

    for_each(PAIRS, compare)


def test_groups_keep_their_own_settings():
    def compare(ours, torchs):
        a, b = small_gpt(), small_gpt()
        ends = train(a, ours(groups(a)), 20), train(b, torchs(groups(b)), 20)
        assert (ends[0] - ends[1]).abs().max() < 1e-6

    for_each(PAIRS, compare)


def test_a_parameter_without_gradient_stays_and_gets_no_state():
    def compare(ours, torchs):
        used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        for make in (ours, torchs):
            optimizer = make([used, unused])
            used.grad = torch.ones(3)
            optimizer.step()
            assert torch.equal(unused, torch.ones(3))
            assert not torch.equal(used, torch.ones(3))
        assert unused not in ours([used, unused]).state

    for_each(PAIRS, compare)


def test_closure_is_called_once_with_gradients_and_its_loss_returned():
    def compare(ours, torchs):
        results = []
        for make in (ours, torchs):
            w, calls = nn.Parameter(torch.tensor([2.0, -1.0])), []
            optimizer = make([w])

            def closure(w=w, optimizer=optimizer, calls=calls):
                calls.append(torch.is_grad_enabled())
                optimizer.zero_grad()
                loss = (w**2).sum()
                loss.backward()
                return loss

            assert optimizer.step(closure).item() == 5.0
            assert calls == [True]
            results.append(w.detach())
        assert torch.allclose(*results, atol=1e-6)

    for_each(PAIRS, compare)


def test_state_dict_round_trip_goes_on_as_if_nothing_had_happened(tmp_path):
    def compare(ours, torchs):
        unbroken = small_gpt()
        end = train(unbroken, ours(unbroken.parameters()), 20)
        first = small_gpt()
        optimizer = ours(first.parameters())
        train(first, optimizer, 10)
        torch.save([first.state_dict(), optimizer.state_dict()], tmp_path / "saved.pt")
        second = small_gpt()
        resumed = ours(second.parameters())
        weights, state = torch.load(tmp_path / "saved.pt", weights_only=True)
        second.load_state_dict(weights)
        resumed.load_state_dict(state)
        assert torch.equal(end, train(second, resumed, 10, first=10))

    for_each(PAIRS, compare)


def test_torch_can_take_over_our_state():
    """Same names, same meaning: half a run with ours, the other half with torch's."""

    def compare(ours, torchs):
        reference = small_gpt()
        end = train(reference, torchs(reference.parameters()), 20)
        model = small_gpt()
        optimizer = ours(model.parameters())
        train(model, optimizer, 10)
        other = torchs(model.parameters())
        state = other.state_dict()
        saved = copy.deepcopy(optimizer.state_dict()["state"])
        for values in saved.values():
            values["step"] = torch.tensor(10.0)  # torch counts in every rule, and with a tensor
        other.load_state_dict({"state": saved, "param_groups": state["param_groups"]})
        assert (train(model, other, 10, first=10) - end).abs().max() < 1e-6

    for_each(PAIRS, compare)


def test_schedulers_work():
    def compare(ours, torchs):
        w = nn.Parameter(torch.ones(1))
        optimizer = ours([w])
        before = optimizer.param_groups[0]["lr"]
        plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        w.grad = torch.ones(1)
        optimizer.step()
        plan.step()
        assert optimizer.param_groups[0]["lr"] == before / 2

    for_each(PAIRS, compare)


def test_negative_learning_rate_is_refused():
    with pytest.raises(ValueError, match="lr is -1"):
        short_optimizers.SGD([nn.Parameter(torch.ones(1))], lr=-1)


def test_a_rule_without_update_says_so():
    w = nn.Parameter(torch.ones(1))
    w.grad = torch.ones(1)
    with pytest.raises(NotImplementedError, match="Rule has no rule yet"):
        short_optimizers.Rule([w], lr=0.1).step()


def test_orthogonalise_keeps_directions_and_levels_lengths():
    for shape in ((8, 8), (6, 20), (20, 6)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        found = short_optimizers.orthogonalise(matrix)
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        core = u.T @ found @ v.T
        assert torch.allclose(core, core.diag().diag(), atol=1e-4), shape
        assert core.diag().min() > 0.6, shape
        assert core.diag().max() < 1.21, shape


def test_orthogonalise_of_zero_is_zero():
    assert torch.equal(short_optimizers.orthogonalise(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_muon_equals_torch_up_to_its_bf16_products():
    start = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    moves = []
    for rule in (short_optimizers.Muon, partial(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")):
        w = nn.Parameter(start.clone())
        optimizer = rule([w], lr=0.1)
        for step in range(5):
            w.grad = torch.randn(24, 16, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        moves.append((w - start).detach())
    assert (moves[0] - moves[1]).norm() < 0.05 * moves[1].norm()


def test_muon_steps_have_the_rms_of_adamw():
    w = nn.Parameter(torch.zeros(32, 128))
    w.grad = torch.randn(32, 128, generator=torch.Generator().manual_seed(0))
    short_optimizers.Muon([w], lr=1.0).step()
    assert w.pow(2).mean().sqrt().item() == pytest.approx(0.2, rel=0.25)


def test_muon_refuses_vectors():
    with pytest.raises(ValueError, match=r"Muon takes matrices; a parameter has shape \(3,\)"):
        short_optimizers.Muon([nn.Parameter(torch.ones(3))])


def test_state_bytes():
    per_parameter = {
        short_optimizers.SGD: 0,
        short_optimizers.Momentum: 4,
        short_optimizers.AdaGrad: 4,
        short_optimizers.RMSProp: 4,
        short_optimizers.Adam: 8,
        short_optimizers.AdamW: 8,
        short_optimizers.Muon: 4,
        torch.optim.AdamW: 8,
    }
    for rule, expected in per_parameter.items():
        w = nn.Parameter(torch.ones(10, 10))
        w.grad = torch.ones(10, 10)
        optimizer = rule([w])
        optimizer.step()
        assert short_optimizers.state_bytes(optimizer) == 100 * expected, rule


def test_arithmetic_is_counted_once_for_each_number_it_writes():
    per_parameter = {
        short_optimizers.SGD: 2,
        short_optimizers.AdaGrad: 7,
        short_optimizers.AdamW: 15,
    }
    for rule, expected in per_parameter.items():
        w = nn.Parameter(torch.ones(10))
        w.grad = torch.ones(10)
        optimizer = rule([w])
        with short_optimizers.CountFlops() as counter:
            optimizer.step()
        assert counter.flops == 10 * expected, rule
