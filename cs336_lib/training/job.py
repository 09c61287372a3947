"""Check the config of a run, open its folder, build its model and data, and describe the run."""

import json
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from cs336_lib import __version__, accounting, hugging_face, schedule
from cs336_lib.config import GPTConfig, TrainConfig, UserError, from_json, refuse
from cs336_lib.data.loader import Loader, open_data, prefetched
from cs336_lib.data.shards import TokenStream
from cs336_lib.data.tokenizer import (
    Tokenizer,
    load_tokenizer,
    require_tokenizer,
    tokenizer_of,
)
from cs336_lib.evals.hellaswag import Example, load_examples
from cs336_lib.formatting import duration
from cs336_lib.io import digest, inside, printable, read_json, write_atomic
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.sampling import encode
from cs336_lib.system import cpu, hardware
from cs336_lib.system.processes import Place, process_group, world_from_environment
from cs336_lib.training import checkpoint, distributed, run_folder
from cs336_lib.training.trackers import require_tracker

Batches = Iterator[tuple[Tensor, Tensor]]

# The range of MFU for the estimate before the start. Public runs of GPT-2 reach a quarter to half
# of a datasheet's peak (docs/reproduce_gpt2.md). A CPU's peak is measured, and steps of GPT-2 come
# close to it (docs/benchmarks.md).
EXPECTED_MFU = {"cpu": (0.3, 0.85), "cuda": (0.25, 0.5)}


@dataclass(frozen=True)
class Job:
    """What a training step needs. `make_job` makes one.

    Attributes:
        config: Settings of the run.
        place: Where the step runs.
        model: The model.
        called: The module to call, which is the model or a wrapper of DDP or torch.compile.
        compiled: Whether torch.compile wraps the model or its blocks.
        optimizer: Optimizer of the model's parameters.
        broken: Whether NaN prevents the update, on the device. Each step writes to it.
    """

    config: TrainConfig
    place: Place
    model: GPT
    called: nn.Module
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
            encode(self.tokenizer, config.sample)
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
        distributed.require_room(shape, config, place)
        flops = accounting.largest_matmul_flops(shape, distributed.micro_batch(config, world))
        stack.enter_context(hardware.threads_for(flops))
        model = given or new_model(shape, config, place)
        job = make_job(model, config, place)
        if resumed is not None:
            checkpoint.restore(resumed, job.model, job.optimizer)
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
        model = hugging_face.load(config.init_from)
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
    compiled = distributed.compiles(config, place)
    called = distributed.prepare_model(model.train(), config, place, compiled=compiled)
    optimizer, broken = make_optimizer(model, config), torch.tensor(False, device=place.device)
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


def announce(run: OpenRun) -> None:
    """Print what will be trained, and write environment.json, on rank 0."""
    if run.job.place.world.is_main:
        described = environment(run.job)
        text = json.dumps(described | {"sha256": digest(described)}, indent=1) + "\n"
        write_atomic(run.folder / run_folder.ENVIRONMENT, text)
        print(banner(run))


def environment(job: Job) -> dict[str, str | int]:
    """Describe the machine and the software of a run, for `cs336 report`."""
    return {
        "device": hardware.device_name(job.place.device),
        "devices": job.place.world.size,
        "precision": "bf16 autocast" if job.place.dtype else "fp32",
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cs336_lib": __version__,
    }


def banner(run: OpenRun) -> str:
    """Describe a run and its expected duration before it starts."""
    job, config, tokenizer = run.job, run.job.config, run.data.tokenizer
    place, devices = job.place, job.place.world.size
    model, first_step = job.model, run.steps.start
    done, total = (schedule.windows_before(n, config) for n in (first_step, config.max_steps))
    tokens = (total - done) * config.block_size
    flops = tokens * accounting.train_flops_per_token(model.config)
    speed, source = hardware.peak_flops(place.device, place.dtype)
    expected = "unknown (no peak FLOP/s known for this device)"
    if speed is not None:
        slow, fast = EXPECTED_MFU[place.device.type]
        shortest, longest = (
            duration(accounting.training_seconds(flops, devices, speed, share))
            for share in (fast, slow)
        )
        shortest = shortest.removesuffix(f" {longest.split()[1]}")  # "3 to 8 minutes"
        shares = f"at {fast:.0%} to {slow:.0%} MFU as in PaLM; small models take longer"
        expected = f"{shortest} to {longest} without validation ({shares})"
        source = f"peak {speed / 1e9:,.0f} GFLOP/s, {source}"
    resumed = f", from step {first_step}" if first_step else ""
    return f"""\
model      {model.num_parameters():,} parameters: {config.n_layer} layers, {config.n_head} heads, \
{config.n_embd} wide, context {config.block_size}
data       {printable(config.train_data) or "the plays that ship"}, tokenizer {tokenizer.name}, \
{tokenizer.vocab_size:,} ids
device     {hardware.device_name(place.device)} x {devices}, \
{"bf16 autocast" if place.dtype else "fp32"} ({source})
run        {config.max_steps} steps of {config.batch_tokens:,} tokens{resumed}: \
{tokens:,} tokens, {flops:.2e} FLOPs
expected   {expected}
writes to  {printable(config.run_dir)}"""


@dataclass(frozen=True)
class Subject:
    """Model, validation data, tokenizer and precision for an evaluation."""

    model: GPT
    stream: TokenStream
    tokenizer: Tokenizer
    precision: str = "auto"


def subject_of_run(run_dir: Path, device: torch.device) -> Subject:
    """Load the newest checkpoint of a run, and open its validation data.

    Raises:
        FileNotFoundError: If the run or its data doesn't exist.
        UserError: If a file is malformed, or if the data was prepared with a different tokenizer.
    """
    model = checkpoint.load_model(run_dir, device)
    path = inside(run_dir, "config.json")
    config = from_json(TrainConfig, read_json(path), path)
    _, stream, tokenizer = open_data(config.train_data, config.val_data, config.tokenizer)
    ours = load_tokenizer(run_dir / "tokenizer.json")
    if ours != tokenizer:
        raise UserError(
            f"{run_dir} was trained with tokenizer {ours}, and its data now has {tokenizer}; "
            "restore the data it was trained with"
        )
    return Subject(cpu.accelerate(model), stream, tokenizer, config.precision)


def subject_of_hugging_face(source: str, device: torch.device, val_data: str = "") -> Subject:
    """Load a GPT-2 in the Hugging Face format, and open validation data.

    Args:
        source: A folder, or gpt2, gpt2-medium, gpt2-large or gpt2-xl.
        device: Device for the model.
        val_data: A folder made by `cs336 prepare`, a glob pattern of shards, or "" for the last
            tenth of the plays in data/.

    Raises:
        FileNotFoundError: If the model or the data doesn't exist.
        UserError: If the model or the data doesn't use the GPT-2 tokenizer.
    """
    model = cpu.accelerate(hugging_face.load(source, device))
    _, stream, tokenizer = open_data("", "", "gpt2")
    theirs, ours = model.config.vocab_size, tokenizer.vocab_size
    if theirs != ours:
        raise UserError(f"{source} has {theirs:,} token ids; GPT-2's {ours:,} expected")
    if val_data:
        stream = TokenStream.open(val_data, "val")
        require_tokenizer(stream.names, tokenizer)
    return Subject(model, stream, tokenizer)
