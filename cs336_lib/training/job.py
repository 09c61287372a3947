"""Check the config of a run, open its folder, and build the model and the data of its steps."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from cs336_lib import accounting, schedule
from cs336_lib.config import GPTConfig, TrainConfig, UserError, refuse
from cs336_lib.data.loader import Loader, open_data, prefetched
from cs336_lib.data.tokenizer import Tokenizer, tokenizer_of
from cs336_lib.evals.hellaswag import Example, load_examples
from cs336_lib.hugging_face import load as load_hugging_face
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.system import hardware
from cs336_lib.system.processes import World, process_group, world_from_environment
from cs336_lib.training import checkpoint, distributed, run_folder
from cs336_lib.training.trackers import require_tracker

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Place:
    """Where a step runs: the device of this process, its precision and the other processes.

    Attributes:
        device: Device of this process.
        dtype: Data type of the matmuls under autocast, or `None` for fp32.
        world: The processes that share each step.
    """

    device: torch.device
    dtype: torch.dtype | None
    world: World

    @property
    def autocast(self) -> torch.autocast:
        """Context that sets the precision of a forward pass."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not None)


@dataclass(frozen=True)
class Job:
    """What a training step needs. `make_job` makes one.

    Attributes:
        config: Settings of the run.
        place: Where the step runs.
        raw_model: The model.
        model: The module to call, which is the model or a wrapper of DDP or torch.compile.
        compiled: Whether torch.compile wraps the model or its blocks.
        optimizer: Optimizer of the model's parameters.
        broken: Whether NaN prevents the update, on the device. Each step writes to it.
    """

    config: TrainConfig
    place: Place
    raw_model: GPT
    model: nn.Module
    compiled: bool
    optimizer: torch.optim.Optimizer
    broken: Tensor


class Data:
    """Data of a run, and examples of HellaSwag if the config names them.

    Args:
        config: Config of the run. Its prompt is encoded, too, so that a bad one is found.

    Raises:
        FileNotFoundError: If the data doesn't exist.
        ValueError: If the data is corrupt, or doesn't fit the config.
    """

    def __init__(self, config: TrainConfig):
        train, val, self.tokenizer = open_data(config.train_data, config.val_data, config.tokenizer)
        self.train, self.val = (
            Loader(stream, config.block_size, self.tokenizer.vocab_size, config.seed)
            for stream in (train, val)
        )
        self.fingerprints = {"train": train.fingerprint(), "val": val.fingerprint()}
        if config.sample:
            self.tokenizer.encode(config.sample)
        self.examples: list[Example] = []
        if config.hellaswag:
            self.examples = load_examples(config.hellaswag, self.tokenizer)


@dataclass(frozen=True)
class OpenRun:
    """A run whose folder is open: its job, its data, and the steps that are left to do."""

    job: Job
    data: Data
    steps: range

    @property
    def folder(self) -> Path:
        """Folder for checkpoints and metrics."""
        return Path(self.job.config.run_dir)

    def micro_batches(self, step: int) -> Batches:
        """Yield the micro-batches of one step on this rank.

        All ranks yield the same number of micro-batches. A rank with too few sequences yields an
        extra window, which gets weight 0 in the loss.
        """
        config, world = self.job.config, self.job.place.world
        before = schedule.windows_before(step, config)
        windows = schedule.batch_windows(step, config)
        if windows < world.size:
            few = f"{windows} sequences are too few for {world.size} processes"
            raise UserError(f"step {step}: {few}")
        for first, size in world.pieces(windows, config.micro_batch_size):
            yield self.data.train.batch(before + first, max(size, 1))

    def batches(self) -> Batches:
        """Yield the micro-batches of all steps on this rank, prefetched to the device."""
        pieces = (piece for step in self.steps for piece in self.micro_batches(step))
        return prefetched(pieces, self.job.place.device)


def check(config: TrainConfig) -> None:
    """Check what the config of a run tells without a look at the machine or a file.

    Contradictions between its fields are refused earlier, when the config is made.

    Raises:
        ConfigError: If something is wrong. The message has a line for every mistake.
    """
    mistakes = []
    if not config.run_dir:
        mistakes.append("run_dir is empty; name a folder for checkpoints and metrics")
    if config.val_data and not config.train_data:
        mistakes.append("val_data without train_data; give both, or neither for the corpus")
    if config.hellaswag and config.tokenizer != "gpt2":
        mistakes.append(
            f"hellaswag needs a model of GPT-2's tokens, and tokenizer is {config.tokenizer!r}; "
            f"train with --tokenizer gpt2"
        )
    refuse(mistakes)


@contextmanager
def open_run(config: TrainConfig) -> Iterator[OpenRun]:
    """Open the folder of a run, and lock it within this block.

    No file changes before the data, the model and the device are known to be right. With
    `init_from`, the config of the job gets the shape of the loaded model.

    Raises:
        ValueError: If a file, the folder or the machine doesn't fit the config.
        OSError: If a file is missing, the folder can't be written, or another process died.
    """
    require_tracker(config.log_to)
    folder = Path(config.run_dir)
    device = hardware.select_device(config.device, world_from_environment().local_rank)
    dtype = hardware.autocast_dtype(device, config.precision)
    with (
        run_folder.resume_hint(folder),
        hardware.reproducible(config.deterministic, config.tf32, device),
        process_group(device) as world,
        ExitStack() as stack,
    ):
        place = Place(device, dtype, world)
        data = Data(config)
        config, begun = run_folder.check(folder, config, data.tokenizer)
        resumed = None
        if begun:  # lock it first, since a run that ends may write one more checkpoint
            stack.enter_context(run_folder.lock(folder, world, begun=True))
            resumed = run_folder.resume_point(folder, data.fingerprints, place.device, world)
        shape, given = config.model_config(data.tokenizer.vocab_size), None
        if config.init_from and resumed is None:
            given = initial_model(config, data.tokenizer)
            shape, config = given.config, run_folder.with_shape(config, asdict(given.config))
        bf16, batch = dtype is not None, distributed.micro_batch(config, world)
        distributed.require_room(shape, config, place.device, place.world, bf16)
        flops = accounting.largest_matmul_flops(shape, batch)
        stack.enter_context(hardware.threads_for(flops))
        model = given or new_model(shape, config, place)
        job = make_job(model, config, place)
        if resumed is not None:
            checkpoint.restore(resumed, job.raw_model, job.optimizer)
        first_step = 0 if resumed is None else checkpoint.step_of(resumed)
        run = OpenRun(job, data, range(first_step, config.max_steps))
        check_batches(run)
        if not begun:
            stack.enter_context(run_folder.lock(folder, world, begun=False))
        run_folder.write(folder, config, data.tokenizer, resumed, world)
        yield run


def new_model(shape: GPTConfig, config: TrainConfig, place: Place) -> GPT:
    """Create a model on the CPU with random weights.

    A model that FSDP will shard is created on the meta device, and its weights are drawn later.
    """
    if distributed.is_sharded(config, place.world):
        with torch.device("meta"):
            return GPT(shape, seed=0)
    return GPT(shape, config.seed)


def initial_model(config: TrainConfig, tokenizer: Tokenizer) -> GPT:
    """Load the weights in `config.init_from`, and shorten their context to `config.block_size`.

    Raises:
        ValueError: If the weights can't be found, use a different tokenizer, or have a context
            shorter than block_size.
    """
    source = Path(config.init_from)
    if (source / "checkpoints").is_dir():
        model = checkpoint.load_model(source, torch.device("cpu"))
    else:
        model = load_hugging_face(config.init_from)
    theirs, context = model.config.vocab_size, model.config.block_size
    if theirs != tokenizer.vocab_size or tokenizer_of(source) not in (None, tokenizer):
        raise UserError(
            f"{source} ({theirs:,} token ids) was trained with another tokenizer than "
            f"{run_folder.data_name(config.train_data)} ({tokenizer.vocab_size:,} token ids) has; "
            f"pass the tokenizer and the data that these weights were made with"
        )
    if context < config.block_size:
        raise UserError(f"{source} has a context of {context} tokens; pass --block-size {context}")
    state = model.state_dict()
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"][: config.block_size]
    shape = replace(model.config, block_size=config.block_size, dropout=config.dropout)
    model = GPT(shape)
    model.load_state_dict(state)
    return model


def make_job(model: GPT, config: TrainConfig, place: Place) -> Job:
    """Move a model to its device, compile, replicate or shard it, and make its optimizer."""
    device, world = place.device, place.world
    compiled = distributed.compiles(config, device, world)
    called = distributed.prepare_model(
        model.train(), config, device, world, place.dtype, compiled=compiled
    )
    optimizer, broken = make_optimizer(model, config), torch.tensor(False, device=device)
    return Job(config, place, model, called, compiled, optimizer, broken)


def check_batches(run: OpenRun) -> None:
    """Read the first batch and the validation set, so that invalid data fails before training.

    Raises:
        ValueError: If a token id is outside the vocabulary, or if a batch has fewer sequences than
            there are ranks.
    """
    for _ in run.micro_batches(run.steps.start):
        pass
    world, val = run.job.place.world, run.data.val
    for start in val.validation_starts(run.job.config.eval_tokens)[world.rank :: world.size]:
        val.windows([start])
