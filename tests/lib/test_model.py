import dataclasses
import math

import torch
import torch.nn.functional as F

from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT
from cs336_lib.training.distributed import init_shards


def test_init_follows_gpt2():
    model = GPT(GPTConfig(64, 1000, 8, 4, 128))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif ".ln_" in name:
            assert (parameter == 1).all()
        else:
            wanted = 0.02 / math.sqrt(16) if "c_proj" in name else 0.02
            assert abs(parameter[:1000].std().item() / wanted - 1) < 0.05, name


def test_a_parameter_depends_on_its_name_and_the_seed_alone(tiny_config):
    model, other = GPT(tiny_config, seed=3), GPT(tiny_config, seed=4)
    smaller = GPT(dataclasses.replace(tiny_config, n_layer=1, vocab_size=9, bias=False), seed=3)
    for name in ("transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight"):
        assert torch.equal(smaller.get_parameter(name), model.get_parameter(name))
        assert not torch.equal(other.get_parameter(name), model.get_parameter(name))
    for name, parameter in reversed(list(other.named_parameters())):
        other.init_parameter(name, parameter, seed=3)
        assert torch.equal(parameter, model.get_parameter(name))
    starts = {p.flatten()[0].item() for p in model.parameters() if p.ndim == 2}
    assert len(starts) == 2 + 4 * tiny_config.n_layer  # no two have the same numbers


def test_shards_begin_with_the_weights_of_the_whole(tiny_config):
    model = GPT(tiny_config, seed=1)
    init_shards(model, seed=2)
    for name, parameter in GPT(tiny_config, seed=2).named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


def test_loss_is_cross_entropy_and_leaves_out_minus_one(tiny_config):
    model = GPT(tiny_config).double()  # whose loss stays in fp64, as a gradient check needs it
    idx, targets = torch.randint(50, (2, 16)), torch.randint(50, (2, 16))
    targets[0, :5] = -1
    kept = targets != -1
    expected = F.cross_entropy(model(idx)[kept], targets[kept])
    torch.testing.assert_close(model(idx, targets), expected)
