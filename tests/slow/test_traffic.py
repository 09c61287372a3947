"""Processes send the bytes of `traffic.traffic`, and so do fake ranks."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_course.pages.thousands_of_gpus import fake_ranks
from cs336_lib.bill import traffic
from cs336_lib.bill.traffic import Layout

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")

LAYOUTS = {  # by name: a layout, and whether tensor parallelism splits the residual stream
    4: {
        "ddp": (Layout(dp=4), False),
        "fsdp": (Layout(dp=4, zero=3), False),
        "fsdp and tensor": (Layout(dp=2, tp=2, zero=3), False),
        "tensor and pipeline": (Layout(tp=2, pp=2, micro_batches=2), True),
    },
}

# The ranks are children of a process that has loaded PyTorch and its compiler, which DDP imports.
PROGRAM = '''
import json, sys
from pathlib import Path
import torch._dynamo
import torch.distributed as dist
import torch.multiprocessing
from cs336_course.pages.thousands_of_gpus import fake_ranks
from cs336_lib.bill.traffic import Layout

def count(rank, ranks, folder):
    """Write what this rank sends in a step of each layout."""
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    found = {}
    for name, (fields, sequence) in json.loads((folder / "layouts.json").read_text()).items():
        found[name] = fake_ranks.run_step(Layout(**fields), sequence)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()

folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
torch.multiprocessing.start_processes(count, (ranks, folder), ranks, start_method="fork")
'''


def launch(folder: Path, ranks: int, layouts: dict) -> list[dict]:
    """Run a step of each layout, and return what each rank sent."""
    fields = {name: (dataclasses.asdict(layout), s) for name, (layout, s) in layouts.items()}
    (folder / "layouts.json").write_text(json.dumps(fields))
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py"), str(folder), str(ranks)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_processes_send_the_traffic(tmp_path, ranks):
    layouts = LAYOUTS[ranks]
    of_ranks = launch(tmp_path, ranks, layouts)
    for name, (layout, sequence) in layouts.items():
        expected = traffic.traffic(fake_ranks.shape(layout), layout, fake_ranks.SEQ)
        edges = expected.pop("pipeline")
        fake = fake_ranks.count(layout, sequence)
        first, last = of_ranks[0][name], of_ranks[-1][name]
        # A device in the middle sends in both directions, and these have one direction each.
        assert sum(rank.pop("send", (0, 0))[1] for rank in (first, last)) == edges, name
        fake.pop("send", None)
        for rank in (first, last):
            assert sum(size for _, size in rank.values()) == sum(expected.values()), name
            assert rank == {key: list(value) for key, value in fake.items()}, name
