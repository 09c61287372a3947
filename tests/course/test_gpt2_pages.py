"""What the four pages on GPT-2's training don't print: programs that fail, and logs of a reader."""

import pytest

from cs336_course.pages.gpt2_scale import pictures as scale
from cs336_course.shared import torchrun


def test_programs_are_finished_or_killed(tmp_path):
    (tmp_path / "count.py").write_text("for i in range(10**9): print('step', i, flush=True)")
    running = torchrun.start(tmp_path, "count.py")
    torchrun.kill_after(running, "step 3")
    assert running.returncode not in (None, 0)
    assert torchrun.finish(torchrun.start(tmp_path, "-c", "print('é')")) == "é\n"
    with pytest.raises(ChildProcessError, match="NameError"):
        torchrun.finish(torchrun.start(tmp_path, "-c", "unknown"))


def test_a_readers_full_run_is_read_from_its_log(tmp_path):
    log = tmp_path / "log.jsonl"
    assert scale.own_run(log) == {}
    log.write_text('{"step": 0, "loss": 10.9}\n')
    assert scale.own_run(log) == {}
    with log.open("a") as file:
        file.write('{"step": 249, "loss": 6.1, "val_loss": 6.2, "hellaswag": 0.25}\n')
    assert scale.own_run(log) == {"yours, on other pages": ([249], [6.2], [0.25])}
    log.write_text('{"step": 249, "loss": 6.1, "val_loss": 6.2}\n')
    assert scale.own_run(log) == {"yours, on other pages": ([249], [6.2], [])}
