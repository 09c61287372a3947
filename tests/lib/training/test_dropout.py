"""Ranks and steps draw different dropout masks: two processes train, joined by gloo."""

import dataclasses
import json
import os
import socket
import subprocess
import sys

STEPS = 3
RANK = """
import hashlib, json, sys
import torch.nn.functional as F
from cs336_lib.config import TrainConfig
from cs336_lib.training.loop import train

masks, dropout = [], F.dropout

def noted(x, p, training):
    y = dropout(x, p, training)
    if training:
        masks.append(hashlib.sha256((y == 0).numpy().tobytes()).hexdigest())
    return y

F.dropout = noted
train(TrainConfig(**json.loads(sys.argv[1])))
print(json.dumps(masks))
"""


def test_no_two_ranks_and_no_two_steps_share_a_dropout_mask(tiny_run):
    config = dataclasses.replace(
        tiny_run, dropout=0.5, max_steps=STEPS, warmup_steps=0, precision="fp32"
    )
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", RANK, json.dumps(dataclasses.asdict(config))]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | place | {"RANK": rank, "LOCAL_RANK": rank, "CS336_TIMEOUT": "9000"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    said = [process.communicate() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    masks = [json.loads(out.splitlines()[-1]) for out, _ in said]
    # Every rank has one micro-batch a step: the embedding's mask, then two from each layer.
    assert len(masks[0]) == len(masks[1]) == STEPS * (1 + 2 * config.n_layer)
    assert len({*masks[0], *masks[1]}) == 2 * len(masks[0])
