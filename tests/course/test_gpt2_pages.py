"""What the four pages on GPT-2's training don't print: programs that fail, and logs of a reader."""

from pathlib import Path

import pytest
import torch

from cs336_course.one_file import assemble
from cs336_course.pages.gpt2_scale import pictures as scale
from cs336_course.pages.gpt2_speed import story as speed
from cs336_course.pages.gpt2_training import pictures, story
from cs336_course.shared import torchrun
from cs336_lib import accounting
from cs336_lib.system import hardware

CPU = torch.device("cpu")


class Clock:
    """A clock that a test sets, and a display that notes what it is shown."""

    def __init__(self):
        self.now, self.shown = 0.0, []

    def __call__(self) -> float:
        return self.now

    def update(self, data, **how):
        self.shown.append(data)


def test_a_watched_script_that_fails_says_why(tmp_path):
    script = tmp_path / "run.py"
    script.write_text("raise SystemExit('no shards')")
    with pytest.raises(RuntimeError, match="no shards"):
        story.watch(script, [], tmp_path / "log.jsonl", print, every=0.01)


def test_the_live_plot_draws_once_a_second_and_where_a_run_was_stopped():
    clock = Clock()
    live = pictures.LiveLossPlot(60, clock=clock)

    def interrupted():
        with live:
            live.handle = clock
            for step in range(40):
                clock.now += 0.25
                live({"step": step, "train_loss": 3.0})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(clock.shown) == 11  # ten seconds, and the end
    assert live.axes.get_title(loc="left") == "Step 40 of 60"


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


@pytest.fixture(scope="module")
def parts() -> speed.Parts:
    """The parts from the notebooks' solutions."""
    notebooks = Path(__file__).parents[2] / "notebooks"
    return speed.Parts(assemble.module("09", notebooks), assemble.module("10", notebooks))


def test_shape_for_a_fast_gpu_is_gpt2_and_fits(monkeypatch):
    gpu, rate = torch.device("cuda", 0), 4e12
    monkeypatch.setattr(hardware, "measured_matmul_flops", lambda device, dtype: rate)
    for free, batch in ((80e9, 16), (24e9, 8), (1e9, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 80e9))
        shape = speed.shape_for(gpu)
        assert shape.batch == batch
        assert accounting.count_parameters(shape.config) == 124_439_808
    rate = 1e12
    assert speed.shape_for(gpu) == speed.shape_for(CPU) == speed.SMALL


def test_the_ladder_leaves_out_what_a_device_lacks(monkeypatch, parts):
    def refuse(*args, **kwargs):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr(hardware, "has_bf16", lambda device: False)
    climbing = speed.Ladder(speed.TINY, CPU, parts, repeats=1)
    rows = {name: climbing.climb() for name in speed.RUNGS}
    assert [row.name for row in rows.values()] == list(rows)
    assert rows["TF32"].note == "no effect on this device"
    assert rows["bf16"].ms is None
    assert rows["compile"].note == "left out: no C++ compiler found"
    every = {"attention": "flash", "padded": True, "fused": True, "library": True}
    assert rows["our library"].settings == speed.Settings("tf32", **every)
    with pytest.raises(ValueError, match="all 8 rungs"):
        climbing.climb()


def test_a_rung_with_another_loss_is_refused(monkeypatch, parts):
    climbing = speed.Ladder(speed.TINY, CPU, parts, repeats=1)
    climbing.climb()
    real = speed.build_model

    def broken(parts, config, settings):
        model = real(parts, config, settings)
        torch.nn.init.normal_(model.transformer.wte.weight, std=0.5)
        return model

    monkeypatch.setattr(speed, "build_model", broken)
    with pytest.raises(ValueError, match="TF32 has losses"):
        climbing.climb()


@pytest.mark.parametrize(
    ("op", "phase", "shapes", "kind"),
    [
        ("aten::mm", "backward", [[8, 8], [8, 8]], "matmul"),
        ("aten::_log_softmax", "forward", [[8, 50]], "loss"),
        ("aten::div", "forward", [[2, 2, 8, 8], []], "attention"),
        ("aten::_efficient_attention_forward", "forward", [], "attention"),
        ("aten::_cudnn_attention_forward", "forward", [], "attention"),
        ("aten::mul", "update", [[8, 8]], "optimizer"),
    ],
)
def test_kernels_that_only_a_gpu_has_are_known(op, phase, shapes, kind):
    assert speed.kind_of(op, phase, shapes) == kind
