"""Train the small GPT that ships: python data/make_shakespeare_gpt.py RUN_DIR

Runs `cs336 train` with the flags below (it goes on where it was stopped), then copies the best
checkpoint to data/shakespeare_gpt without the optimizer's state, which is twice as large as the
weights and of no use to a reader.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from cs336_lib.io import sha256
from cs336_lib.training import checkpoint

FLAGS = (
    "shakespeare-char --n-layer 6 --n-head 6 --n-embd 192 --block-size 256 --optimizer muon "
    "--momentum 0.95 --beta2 0.99 --schedule cosine --batch-tokens 4096 --micro-batch-size 16 "
    "--max-steps 1200 --warmup-steps 50 "
    "--learning-rate 4e-3 --min-learning-rate 1e-4 --weight-decay 0.1 --dropout 0.0 "
    "--eval-every 100 --eval-tokens 131072 --checkpoint-every 100 --seed 1337"
).split()


def ship(run_dir: Path, folder: Path) -> None:
    """Copy a run with its best checkpoint only, and that without the optimizer's state."""
    states = {c: checkpoint.read_state(c) for c in checkpoint.checkpoints(run_dir / "checkpoints")}
    measured = {c: state["val_loss"] for c, state in states.items() if state["val_loss"]}
    best = min(measured, key=measured.__getitem__)
    shutil.rmtree(folder, ignore_errors=True)
    target = folder / "checkpoints" / best.name
    target.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "metrics.jsonl"):
        shutil.copyfile(run_dir / name, folder / name)
    config = json.loads((folder / "config.json").read_text())
    config["run_dir"] = "runs/shakespeare_gpt"
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in (checkpoint.MODEL, checkpoint.STATE):
        shutil.copyfile(best / name, target / name)
    manifest = {name: sha256(target / name) for name in (checkpoint.MODEL, checkpoint.STATE)}
    (target / checkpoint.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{folder}: {best.name}, validation loss {measured[best]:.4f}")


if __name__ == "__main__":
    run_dir = Path(sys.argv[1])
    command = [sys.executable, "-m", "cs336_lib", "train", *FLAGS]
    subprocess.run([*command, "--run-dir", str(run_dir), "--resume"], check=True)
    ship(run_dir, Path(__file__).parent / "shakespeare_gpt")
