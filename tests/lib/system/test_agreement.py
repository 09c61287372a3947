"""MPS is taken only by name, with a warning if it computes another training step than the CPU.

The CPU stands in for MPS here, with one result made wrong.
"""

import pytest
import torch

from cs336_lib.system import agreement, hardware

CPU, MPS = torch.device("cpu"), torch.device("mps")
PARTS = sorted(agreement.tiny_step(CPU))
STEP = agreement.tiny_step


@pytest.fixture
def pretend(monkeypatch):
    """A machine with MPS and no CUDA, whose results `wrong` changes."""

    def install(wrong=lambda found: None):
        def step(device):
            asked.append(device.type)
            found = STEP(CPU)
            if device.type == "mps":
                wrong(found)
            return found

        asked: list[str] = []
        agreement.warn_unless_as_cpu.cache_clear()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        monkeypatch.setattr(agreement, "tiny_step", step)
        return asked

    yield install
    agreement.warn_unless_as_cpu.cache_clear()


def test_mps_asked_for_by_name_is_compared_once(pretend, capsys):
    asked = pretend()
    assert [hardware.select_device("mps") for _ in range(2)] == [MPS, MPS]
    assert asked == ["cpu", "mps"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("part", "value"), [(PARTS[-1], 1.01), ("loss", float("nan"))])
def test_mps_that_differs_in_any_part_is_warned_of(pretend, capsys, part, value):
    pretend(lambda found: found[part].view(-1)[found[part].abs().argmax()].mul_(value))
    assert [hardware.select_device("mps") for _ in range(2)] == [MPS, MPS]
    said = capsys.readouterr().err
    assert said.startswith("mps fails in a small training step (")
    assert said.endswith(f"for item ['{part}']); use --device cpu\n")
    assert said.count("\n") == 1
