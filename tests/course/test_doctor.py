"""`cs336 doctor` describes the machine, and finds what is wrong with it."""

from dataclasses import replace

import pytest

from cs336_course import cli
from cs336_course.learner import doctor
from cs336_lib.system import hardware

HEALTHY = doctor.Machine(16 * 10**9, 50 * 10**9, True, "GPU", True, "", "")


@pytest.mark.parametrize(
    ("change", "said", "serious"),
    [
        ({"memory": 10**9}, "1.0 GB of memory", True),
        ({"free_disk": 10**8}, "0.1 GB of free disk", True),
        ({"data": "gpt2.tiktoken is cut off"}, "gpt2.tiktoken is cut off", True),
        ({"gpu": ""}, "PyTorch doesn't see a GPU", True),
        ({"compiler": "no C++ compiler found"}, "no C++ compiler found", False),
        ({"has_bf16": False}, "no native bf16", False),
    ],
)
def test_each_problem_is_found_with_a_remedy(change, said, serious):
    (found,) = doctor.problems(replace(HEALTHY, **change))
    assert said in found.what
    assert found.serious == serious
    assert found.remedy in doctor.report(replace(HEALTHY, **change))
    assert doctor.report(HEALTHY).endswith("\n\nNo problems found.")


def cut_off():
    raise ValueError("cut")


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_command_examines_this_machine(tmp_path, monkeypatch, capsys, is_whole):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "why_not_compiled", lambda device: "")  # takes 10 seconds
    monkeypatch.setattr(doctor, "ENOUGH_MEMORY", 0)
    monkeypatch.setattr(doctor, "ENOUGH_DISK", 0)
    if not is_whole:
        monkeypatch.setattr(doctor, "gpt2_encoding", cut_off)
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor"])
    out = capsys.readouterr().out
    assert ended.value.code == (not is_whole), out
    assert f"{tmp_path}" in out
    assert ("ValueError: cut" in out) == (not is_whole)
