import os
import subprocess
import sys

import pytest
import torch

from cs336_lib.system import hardware

CPU = torch.device("cpu")


def test_precision_follows_the_processor(monkeypatch):
    for flags, override, dtype in (
        ({"avx2"}, "", None),
        ({"avx2", "avx512_bf16"}, "", torch.bfloat16),
        ({"avx2", "amx_bf16"}, "0", None),
        ({"avx2"}, "1", torch.bfloat16),
    ):
        monkeypatch.setattr(hardware, "cpu_flags", lambda flags=flags: frozenset(flags))
        monkeypatch.setenv("CS336_CPU_BF16", override)
        assert hardware.autocast_dtype(CPU, "auto") == dtype
        assert hardware.autocast_dtype(CPU, "bf16") == torch.bfloat16  # slow, but requested
        assert hardware.autocast_dtype(CPU, "fp32") is None


def test_a_gpu_gets_its_own_figures_or_none(monkeypatch):
    for name, key in (
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx 4090"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),  # a part of one
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ):
        monkeypatch.setattr(hardware, "device_name", lambda _, name=name: name)
        assert hardware.datasheet(torch.device("cuda")) is hardware.DATASHEET.get(key)
        if key is None:
            assert hardware.peak_flops(torch.device("cuda"), None) == (None, "unknown peak")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Call it with a text for /proc/self/cgroup and the files of /sys/fs/cgroup; 8 GB are there."""

    def build(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text + "\n")
        monkeypatch.setattr(hardware, "OWN_CGROUPS", tmp_path / "own")
        monkeypatch.setattr(hardware, "CGROUPS", tmp_path)
        pages = {"SC_PHYS_PAGES": 2_000_000, "SC_PAGE_SIZE": 4000}
        monkeypatch.setattr(hardware.os, "sysconf", pages.__getitem__)

    return build


def test_threads_sleep_only_if_openmp_was_told_in_time():
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CUBLAS_WORKSPACE_CONFIG")
    for policy, first, found in (
        (None, "torch", "2 PASSIVE None :4096:8"),  # OpenMP read no policy, so its threads spin
        (None, "cs336_lib", "1 PASSIVE 1000 :4096:8"),
        ("passive", "cs336_lib", "1 passive 1000 :4096:8"),  # OpenMP takes small letters, too
        ("ACTIVE", "cs336_lib", "2 ACTIVE None :4096:8"),
    ):
        program = (
            f"import {first}, os, sys, torch\n"
            "from cs336_lib.system import hardware\n"
            "os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')  # too late for OpenMP\n"
            "torch.set_num_threads(2)\n"
            "with hardware.threads_for(1):\n"
            f"    print(torch.get_num_threads(), *(os.environ.get(name) for name in {names}))"
        )
        environment = {key: value for key, value in os.environ.items() if key not in names}
        environment |= {"OMP_WAIT_POLICY": policy} if policy else {}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == found


def test_memory_is_what_the_control_groups_leave(machine):
    for own, files, there in (
        ("0::/\n", {"memory.max": "3000000000"}, 3e9),  # as a container sees it
        ("0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": "2000000000"}, 2e9),
        ("3:cpu:/a\n0::/b\n", {"memory.max": "max", "b/memory.max": "4000000000"}, 4e9),
        ("", {"memory.max": "1"}, 8e9),
    ):
        machine(own, files)
        assert hardware.memory(CPU) == there, own
    hardware.require_memory(7.9e9, CPU, "a model")
    with pytest.raises(ValueError, match=r"a model needs 8\.1 GB at least, and cpu has 8\.0 GB"):
        hardware.require_memory(8.1e9, CPU, "a model")
