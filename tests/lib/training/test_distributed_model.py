import torch

from cs336_lib.config import TrainConfig
from cs336_lib.model import GPT
from cs336_lib.system import cpu, hardware
from cs336_lib.system.processes import Place
from cs336_lib.training import distributed

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_a_gpu_compiles_by_default(monkeypatch):
    monkeypatch.setattr(hardware, "why_not_compiled", lambda device: "")
    for switch, device, expected in [
        *(("auto", GPU, True), ("auto", CPU, False)),
        *(("on", CPU, True), ("off", GPU, False)),
    ]:
        config = TrainConfig(compile=switch)
        assert distributed.compiles(config, Place(device)) is expected, (switch, device)


def test_a_model_on_a_cpu_gets_its_operators(tiny_config):
    config = TrainConfig(n_layer=2)
    model = GPT(tiny_config)
    called = distributed.prepare_model(model, config, Place(CPU), compiled=False)
    assert called is model
    assert isinstance(model, cpu.FastGPT)
    assert all(isinstance(block.attn, cpu.FastAttention) for block in model.transformer.h)
