"""The stop button during training, in a real kernel: it stays usable, and the run can go on."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

SETUP = """
import dataclasses, itertools, time
from pathlib import Path
from cs336_course.pages.gpt2_training.pictures import LiveLossPlot
from cs336_lib.config import PRESETS
from cs336_lib.training.loop import train
shape = dict(n_layer=1, n_head=2, n_embd=16, block_size=8, dropout=0.1)
steps = dict(max_steps=60, batch_tokens=64, micro_batch_size=8, warmup_steps=2, compile="off")
saves = dict(eval_every=20, eval_tokens=64, checkpoint_every=10, device="cpu")
config = dataclasses.replace(
    PRESETS["shakespeare-char"][1], run_dir="run", **shape, **steps, **saves
)
"""
# After twelve steps, it waits for the button. By its clock, each step takes a second.
RUN = """
with LiveLossPlot(config.max_steps, clock=itertools.count().__next__) as live:
    def on_step(row):
        live(row)
        while len(live.rows) >= 12 and not Path("pressed").exists():
            time.sleep(0.01)
    result = train(config, on_step)
"""


class Kernel:
    """A kernel as a notebook has it."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient):
        self.manager, self.client = manager, client
        self.updates = 0
        self.printed = ""

    def run(self, code: str, at: int = 0) -> dict:
        """Execute code; stop is pressed once the log has `at` rows, if any. The reply."""

        def look(message: dict) -> None:
            kind, content = message["msg_type"], message["content"]
            self.updates += kind == "update_display_data"
            if kind == "stream" and content["name"] == "stdout":
                self.printed += content["text"]

        thread = threading.Thread(target=self.press, args=(at,), daemon=True)
        if at:
            thread.start()
        return self.client.execute_interactive(code, output_hook=look)["content"]

    def press(self, at: int) -> None:
        """Wait for the log to have `at` rows, then press stop."""
        log = Path("run/metrics.jsonl")
        while not log.exists() or log.read_text().count("\n") < at:
            time.sleep(0.05)
        self.manager.interrupt_kernel()
        Path("pressed").touch()


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> Iterator[Kernel]:
    """A kernel of our own in an empty folder, with the imports done."""
    monkeypatch.chdir(tmp_path)
    manager, client = start_new_kernel(600, kernel_name="python3")
    try:
        found = Kernel(manager, client)
        assert found.run(SETUP)["status"] == "ok"
        yield found
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_stop_ends_the_step_saves_and_goes_on(kernel):
    reply = kernel.run(RUN, at=12)
    assert reply["status"] == "ok", reply
    assert "--resume continues it" in kernel.printed
    assert kernel.updates >= 2  # while it ran, and at its end
    code = """
    done = len(result.metrics)
    assert not result.finished and done == 13, done  # one more
    assert live.rows == result.metrics
    result = train(dataclasses.replace(config, resume=True), live)
    assert result.finished and [row["step"] for row in result.metrics] == [*range(60)]
    assert live.rows == result.metrics
    """
    assert kernel.run(code.replace("\n    ", "\n"))["status"] == "ok"
