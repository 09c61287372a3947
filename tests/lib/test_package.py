"""The names that the package exports."""

import subprocess
import sys


def test_one_line_is_enough_to_train_and_sample(tmp_path):
    """Modules of a similar name, which were imported before, don't hide a function."""
    program = f"""
import cs336_lib.cli, cs336_lib.sampling, cs336_lib.training.loop, cs336_lib.training
from cs336_lib import GPT, GPTConfig, TrainConfig, train, generate
import torch
config = TrainConfig(
    run_dir={str(tmp_path / "run")!r}, tokenizer="char", n_layer=1, n_head=1, n_embd=8,
    block_size=8, batch_tokens=16, max_steps=2, warmup_steps=0, eval_tokens=16, device="cpu",
)
model = train(config).model
assert isinstance(model, GPT) and isinstance(model.config, GPTConfig)
print(generate(model, torch.tensor([[1, 2, 3]]), 4).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["torch.Size([1, 7])"], done.stderr


# What `cs336 --help`, estimate, simulate, check, lab, assemble and fetch import, which shouldn't
# wait for PyTorch
QUICK = """
cs336_course.cli cs336_lib.bill.text cs336_course.learner.study
cs336_lib.data.prepare cs336_course.learner.lab cs336_course.one_file.assemble cs336_course.fetch
""".split()


def test_quick_commands_do_not_load_torch():
    program = f"import sys, {', '.join(QUICK)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"
