import os
import subprocess
import sys
from unittest.mock import Mock

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


def test_why_the_compiler_fails_is_one_line(monkeypatch):
    monkeypatch.setattr(hardware.tempfile, "tempdir", "/my tmp")
    for said, told in (
        ("C++\n\ng++ /my tmp/a.h", "/my tmp has a blank"),
        ("noexec\n\nSet", "noexec"),
    ):
        monkeypatch.setattr(torch, "compile", Mock(side_effect=RuntimeError(said)))
        (line,) = hardware.why_not_compiled(CPU).split("\n")
        assert told in line


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


def test_memory_is_what_the_control_groups_leave(tmp_path, monkeypatch):
    own, limits = tmp_path / "own", tmp_path / "groups"
    monkeypatch.setattr(hardware, "OWN_CGROUPS", own)
    monkeypatch.setattr(hardware, "CGROUPS", limits)
    (limits / "job" / "step").mkdir(parents=True)
    (limits / "job" / "step" / "memory.max").write_text("max\n")
    (limits / "job" / "memory.max").write_text("2000000000\n")
    for text, found in (("3:cpu:/a\n0::/job/step\n", [2e9]), ("0::/\n", []), ("", [])):
        own.write_text(text)
        assert hardware.cgroup_limits() == found
    own.write_text("0::/job\n")
    hardware.require_memory(1.9e9, CPU, "a model")
    with pytest.raises(ValueError, match=r"a model needs 2\.1 GB at least, and cpu has 2\.0 GB"):
        hardware.require_memory(2.1e9, CPU, "a model")
