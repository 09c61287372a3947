"""`cs336 doctor` describes the machine, and finds what is wrong with it."""

from dataclasses import replace

import pytest

from cs336_course import cli
from cs336_course.learner import doctor, study
from cs336_lib.system import hardware

HEALTHY = doctor.Machine("2.11.0+cu130", 16 * 10**9, 50 * 10**9, True, "GPU", True, "", "", ())


def test_a_healthy_machine_has_no_problem():
    assert doctor.problems(HEALTHY) == []
    assert doctor.problems(replace(HEALTHY, memory=None, gpu="", gpu_driver=False)) == []


@pytest.mark.parametrize(
    ("change", "said", "serious"),
    [
        ({"torch_version": "2.9.1"}, "PyTorch 2.9.1 is too old", True),
        ({"memory": 10**9}, "1.0 GB of memory", True),
        ({"free_disk": 10**8}, "0.1 GB of free disk", True),
        ({"data": "gpt2.tiktoken is cut off"}, "gpt2.tiktoken is cut off", True),
        ({"gpu": ""}, "PyTorch doesn't see a GPU", True),
        ({"outdated": ("03_einops",)}, "of another version: 03_einops", True),
        ({"compiler": "no C++ compiler found"}, "no C++ compiler found", False),
        ({"has_bf16": False}, "no native bf16", False),
    ],
)
def test_each_problem_is_found_with_a_remedy(change, said, serious):
    (found,) = doctor.problems(replace(HEALTHY, **change))
    assert said in found.what
    assert found.serious == serious
    report = doctor.report(replace(HEALTHY, **change))
    assert found.remedy in report
    assert "No problems" not in report
    assert doctor.report(HEALTHY).endswith("\n\nNo problems found.")


def cut_off():
    raise ValueError("cut")


def test_the_command_examines_this_machine(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "why_not_compiled", lambda device: "")  # takes 10 seconds
    study.update(study.SHIPPED)
    monkeypatch.setattr(doctor, "ENOUGH_MEMORY", 0)
    monkeypatch.setattr(doctor, "ENOUGH_DISK", 0)
    model = tmp_path / "model.gguf"
    monkeypatch.setenv("CS336_SMOLLM2", str(model))
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor"])
    out = capsys.readouterr().out
    assert ended.value.code == 0, out
    assert f"{tmp_path}" in out
    assert f"SmolLM2    CS336_SMOLLM2={model}: no SmolLM2 there\n" in out
    model.touch()
    copies = study.read_copies(study.MINE)
    copies["03_einops.ipynb"]["file"] = "of an older version"
    study.write_copies(study.MINE, copies)
    monkeypatch.setattr(doctor, "gpt2_encoding", cut_off)
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor"])
    out = capsys.readouterr().out
    assert ended.value.code == 1, out
    assert "ValueError: cut" in out
    assert f"SmolLM2    {model}\n" in out
    assert "notebooks of another version: 03_einops" in out
