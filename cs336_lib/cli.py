"""The command line, with one dataclass per command. The course adds its own commands to these."""

import atexit
import contextlib
import dataclasses
import gc
import io
import itertools
import os
import re
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import tyro

from cs336_lib import config
from cs336_lib.config import PRESETS, ConfigError, TrainConfig, UserError, preset_for
from cs336_lib.io import Log, atomic, printable, write_atomic

DESCRIPTION = "Train, sample, evaluate and export GPT-2 models, prepare data, estimate costs."

# One subcommand per preset, with every field of TrainConfig as a flag.
Preset = tyro.extras.subcommand_type_from_defaults(
    {name: dataclasses.replace(PRESETS[name][1], run_dir=f"runs/{name}") for name in PRESETS},
    {name: description for name, (description, _) in PRESETS.items()},
)


@dataclass(frozen=True)
class Train:
    """Train a GPT from a preset. Flags override the fields of the preset."""

    # mypy can't know a type that tyro makes at run time.
    config: tyro.conf.OmitArgPrefixes[tyro.conf.OmitSubcommandPrefixes[Preset]]  # type: ignore[valid-type]
    """The preset to start from."""

    def run(self) -> None:
        """Run `cs336 train`."""
        from cs336_lib import sampling
        from cs336_lib.system.processes import world_from_environment
        from cs336_lib.training.loop import train

        config: TrainConfig = self.config
        result = train(config)
        if result.finished and world_from_environment().is_main:
            sample = f"cs336 sample --run-dir {shlex.quote(config.run_dir)}"
            if sampling.first_prompt(result.tokenizer, "Romeo:") == "Romeo:":
                sample += " --prompt 'Romeo:'"
            print(f"validation loss {result.val_loss:.4f}; try: {printable(sample)}")


@dataclass(frozen=True)
class Sample:
    """Continue a prompt with a trained model and print tokens as they are sampled."""

    run_dir: Path
    """Folder of a run made by `cs336 train`."""
    # A plain `str | None` would read the text "None" as no prompt.
    prompt: Annotated[str | None, tyro.conf.arg(constructor=str, help_behavior_hint="")] = None
    """Text to continue (default: a newline, or the tokenizer's first character). "" and
    "<|endoftext|>" begin a new document."""
    max_new_tokens: int = 200
    """Maximum number of tokens to sample."""
    num_samples: int = 1
    """Number of continuations to sample, one after another."""
    stop: bool = True
    """Stop at <|endoftext|>, if the tokenizer has this token."""
    temperature: float = 0.8
    """Divisor of the logits. 0 always picks the most likely token."""
    top_k: int | None = 50
    """Sample only from the k most likely tokens (None: all)."""
    top_p: float | None = None
    """Sample only from the most likely tokens with this total probability (None: all)."""
    seed: int | None = None
    """Random seed. Sample n uses seed + n - 1 (None: a random seed)."""
    weights: Literal["fp32", "fp16", "bf16"] = "fp16"
    """Data type of the weights. 16 bits take half the time in a large model on a CPU. fp32 gives
    the text of `cs336_lib.generate`."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""

    def run(self) -> None:
        """Run `cs336 sample`."""
        from cs336_lib import sampling
        from cs336_lib.system import hardware
        from cs336_lib.training import checkpoint

        if self.num_samples < 1:
            raise UserError(f"num_samples is {self.num_samples}; at least 1 expected")
        count = self.max_new_tokens
        settings: dict[str, Any] = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }
        sampling.SamplingConfig(count, seed=self.seed, **settings)  # refuses bad ones
        model, tokenizer = checkpoint.load_run(self.run_dir, hardware.select_device(self.device))
        sampling.store_weights(model, sampling.WEIGHTS[self.weights])
        prompt = self.prompt
        if prompt is None:
            prompt = sampling.first_prompt(tokenizer, "\n")
        for number in range(self.num_samples):
            seed = None if self.seed is None else self.seed + number
            pieces = sampling.stream_text(
                model, tokenizer, prompt, count, stop=self.stop, seed=seed, **settings
            )
            print("---------------\n" if number else "", end="")
            for piece in itertools.chain([prompt + next(pieces)], pieces):
                print(piece, end="", flush=True)
            print()


@dataclass(frozen=True)
class Eval:
    """Measure loss, perplexity and bits per byte of a run or a GPT-2, also under torchrun."""

    run_dir: Path | None = None
    """Folder of a run made by `cs336 train`. The run's own validation data is used."""
    model: str = ""
    """Model to evaluate instead of a run: gpt2, gpt2-medium, gpt2-large, gpt2-xl or a Hugging
    Face folder."""
    val_data: str = ""
    """Validation data for --model: a folder made by `cs336 prepare`, or a pattern of .bin shards
    (default: the last tenth of the shipped plays)."""
    eval_tokens: int = 1048576
    """Maximum number of tokens to score. Every evaluation scores the same tokens."""
    micro_batch_size: int = 16
    """Sequences per forward pass."""
    hellaswag: str = ""
    """Also evaluate HellaSwag, from a JSON lines file or from the hub (Rowan/hellaswag)."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""

    def run(self) -> None:
        """Run `cs336 eval`."""
        from cs336_lib.data.loader import Loader
        from cs336_lib.evals import hellaswag, loss
        from cs336_lib.system import hardware, processes
        from cs336_lib.system.processes import Place
        from cs336_lib.training import job

        for name in ("eval_tokens", "micro_batch_size"):
            value = getattr(self, name)
            if value < 1:
                raise UserError(f"{name} is {value}; at least 1 needed")
        if bool(self.run_dir) == bool(self.model) or (self.run_dir and self.val_data):
            raise UserError("give --run-dir or --model, and --val-data only with --model")
        local_rank = processes.world_from_environment().local_rank
        device = hardware.select_device(self.device, local_rank)
        with processes.process_group(device) as world:
            if self.run_dir:
                judged = job.subject_of_run(self.run_dir, device)
            else:
                judged = job.subject_of_hugging_face(self.model, device, self.val_data)
            model, tokenizer = judged.model, judged.tokenizer
            block_size = model.config.block_size
            examples = hellaswag.load_examples(self.hellaswag, tokenizer) if self.hellaswag else []
            place = Place(device, hardware.autocast_dtype(device, judged.precision), world)
            loader = Loader(judged.stream, block_size, tokenizer.vocab_size, seed=0)
            sizes = self.eval_tokens, self.micro_batch_size
            text = str(loss.score(model, loader, tokenizer, *sizes, place))
            if examples:
                text += f"\nHellaSwag      {hellaswag.score(model, examples, block_size, place)}"
            if world.is_main:
                print(text)


@dataclass(frozen=True)
class Prepare:
    """Tokenize documents for `cs336 train PRESET --train-data OUT`."""

    out: Path
    """Folder to create. If the command is interrupted, run it again to resume."""
    files: tyro.conf.Positional[tuple[Path, ...]] = ()
    """UTF-8 text (one document per file), .jsonl or .parquet (one document per row)."""
    hub: str = ""
    """Dataset on the Hugging Face hub to read instead of files (HuggingFaceFW/fineweb-edu)."""
    hub_config: str = ""
    """Configuration of the dataset, such as sample-10BT."""
    text_field: str = "text"
    """Field of a row that holds the text."""
    split_documents: bool = False
    """Begin a new document at each <|endoftext|> in a text file."""
    tokenizer: Literal["gpt2", "char"] = "gpt2"
    """GPT-2's byte-pair encoding, or one id per character."""
    val_fraction: float = 0.1
    """Fraction of the data for validation: entire documents, or the end of a single text."""
    workers: int | None = None
    """Number of tokenizer threads (None: one per core). It doesn't change the result."""
    shard_tokens: int = 100_000_000
    """Tokens per .bin file."""

    def run(self) -> None:
        """Run `cs336 prepare`."""
        from cs336_lib.data.prepare import Corpus, prepare

        counts = prepare(
            Corpus(self.files, self.text_field, self.hub, self.hub_config, self.split_documents),
            self.out,
            self.tokenizer,
            self.val_fraction,
            workers=self.workers,
            shard_tokens=self.shard_tokens,
        )
        found = f"{counts['train']:,} tokens to train on, {counts['val']:,} to validate"
        print(printable(f"{self.out}: {found}"))
        preset = preset_for(self.tokenizer, counts["train"])
        data, run_dir = shlex.quote(str(self.out)), shlex.quote(f"runs/{self.out.name}")
        print(printable(f"next: cs336 train {preset} --train-data {data} --run-dir {run_dir}"))


@dataclass(frozen=True)
class Estimate(config.EstimateConfig):
    """Estimate training days and the largest model that fits, and show the arithmetic.

    LoRA isn't counted: its gradients and moments are nearly free, and the rest of the memory stays
    (side trip Memory). Fine-tuning is training on its own tokens. Inference has other limits (side
    trip What a model costs, section 10). A spot price is any --price, and its interruptions come on
    top (side trip Thousands of GPUs, section 6).
    """

    def run(self) -> None:
        """Run `cs336 estimate`."""
        from cs336_lib.bill.text import estimate

        print(estimate(**dataclasses.asdict(self)))


@tyro.conf.configure(tyro.conf.DisallowNone)  # flags are left out, and not "None"
@dataclass(frozen=True)
class Simulate(config.SimulateConfig):
    """Simulate a step on a cluster with --tp and --pp, or find its fastest layouts without one."""

    def run(self) -> None:
        """Run `cs336 simulate`."""
        from cs336_lib.bill.text import simulation

        print(simulation(**dataclasses.asdict(self)))


@dataclass(frozen=True)
class Export:
    """Export the model and tokenizer of a run to a folder for Hugging Face transformers."""

    run_dir: Path
    """Folder of a run made by `cs336 train`."""
    out: Path
    """Folder to create. `hf upload me/my-gpt FOLDER` then puts it on the Hugging Face hub."""

    def run(self) -> None:
        """Run `cs336 export`."""
        from cs336_lib import hugging_face
        from cs336_lib.report import page
        from cs336_lib.system import hardware
        from cs336_lib.training import checkpoint

        model, tokenizer = checkpoint.load_run(self.run_dir, hardware.select_device("cpu"))
        hugging_face.export(model, self.out, tokenizer, page.model_card(self.run_dir))
        out = str(self.out)
        print(f"{printable(out)}: load it by GPT2LMHeadModel.from_pretrained({out!r})")


@dataclass(frozen=True)
class Compare:
    """Compare runs by config, losses, speed and time."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs made by `cs336 train`, finished or not."""
    out: Path | None = None
    """Also plot the losses to this .png file."""
    beside: Annotated[Literal["nothing", "reference"], tyro.conf.arg(name="with")] = "nothing"
    """With reference, judge whether each run is normal, and name likely causes if it isn't."""

    def run(self) -> None:
        """Run `cs336 compare`."""
        from cs336_lib.report.runs import judge, read_run, table

        if not self.runs:
            raise UserError("no run given; cs336 compare runs/a runs/b")
        runs = [read_run(folder) for folder in self.runs]
        if out := self.out:
            if out.suffix != ".png":
                raise UserError(f"--out is {out}; a name that ends with .png expected")
            try:
                from cs336_lib.report import curves
            except ImportError:
                raise UserError("--out needs matplotlib; pip install matplotlib") from None
            figure = curves.compared({printable(run.name): run.rows for run in runs})
            with atomic(out) as temporary:
                figure.savefig(temporary)
        print(table(runs))
        if self.beside == "reference":
            for run in runs:
                print(f"\n{printable(run.name)}\n{judge(run)}")


@dataclass(frozen=True)
class Report:
    """Write one web page about a run: curves, samples, cost, environment and config."""

    run_dir: tyro.conf.Positional[Path]
    """Folder of a run made by `cs336 train`, finished or not."""
    out: Path | None = None
    """File to write (default: report.html in the folder of the run)."""
    price: float | None = None
    """Dollars per device and hour, for the cost."""
    overwrite: bool = False
    """Replace the file if it exists."""

    def run(self) -> None:
        """Run `cs336 report`."""
        from cs336_lib.report import page

        out = self.out or self.run_dir / "report.html"
        if self.price is not None and not 0 < self.price <= 1e6:
            raise UserError(f"price is {self.price}; above 0 and at most 1000000 expected")
        if out.exists() and not self.overwrite:
            raise FileExistsError(f"{out} exists; pass --overwrite, or another name with --out")
        run, environment = page.read(self.run_dir)
        try:
            from cs336_lib.report import curves
        except ImportError:
            raise UserError("cs336 report needs matplotlib; pip install matplotlib") from None
        figures = curves.progress(run.rows, run.config.grad_clip)
        pictures = [curves.inline_svg(figure) for figure in figures]
        write_atomic(out, page.page(run, environment, pictures, self.price))
        print(f"{printable(str(out))}: {out.stat().st_size / 1000:,.0f} kB")


@dataclass(frozen=True)
class Race:
    """Train the best GPT that this machine can in some minutes, everything included."""

    minutes: float = 5.0
    """Minutes for everything, the evaluation included."""
    run_dir: str = "runs/race"
    """Folder for the run."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""

    def run(self) -> None:
        """Run `cs336 race`."""
        from cs336_lib.training.race import race

        begun = time.perf_counter()
        score = race(self.minutes, self.run_dir, self.device)
        print(f"{score}\n{time.perf_counter() - begun:.0f} seconds in all")


Command = Train | Sample | Eval | Prepare | Estimate | Simulate | Export | Compare | Report | Race


def plain(argument: str) -> str:
    """Return a number such as 70B, 15T or 50% without its unit, and other arguments unchanged."""
    if not (found := re.fullmatch(r"([\d.]*\d)([KMBT%])", argument)):
        return argument
    unit = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "%": 0.01}[found[2]]
    return f"{float(found[1]) * unit:.12g}"


def parse(arguments: list[str], commands: Any = Command) -> Any:
    """Parse command-line arguments into one of the commands.

    Raises:
        UserError: If the values of a config contradict each other.
        SystemExit: With code 0 after printing help, or with code 2 after tyro's explanation.
    """
    explanation = io.StringIO()
    if arguments[:1] in (["estimate"], ["simulate"]):
        arguments = [plain(argument) for argument in arguments]
    try:
        with contextlib.redirect_stderr(explanation):
            return tyro.cli(commands, prog="cs336", description=DESCRIPTION, args=arguments)
    except SystemExit as ended:
        error = ended.__context__
        while error and not isinstance(error, UserError):
            error = error.__context__
        if error:  # a config, which tyro makes from the flags, has refused them
            raise error from None
        Log().write(explanation.getvalue())
        raise


def fail(*mistakes: str) -> NoReturn:
    """Print a line on stderr for each mistake, and exit with code 2.

    Control characters are escaped.
    """
    for mistake in mistakes:
        Log().write(f"cs336: {printable(mistake)}\n")
    sys.exit(2)


def main(arguments: list[str] | None = None, commands: Any = Command) -> None:
    """Run one of the commands.

    An error that a user can cause prints one line on stderr and exits with code 2.
    """
    if arguments is None:
        # Python exits 0.7 s faster if it doesn't search PyTorch's objects for garbage.
        atexit.register(gc.freeze)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # for terminals without Unicode
    try:
        parse(sys.argv[1:] if arguments is None else arguments, commands).run()
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        nowhere = os.open(os.devnull, os.O_WRONLY)  # for the last flush
        os.dup2(nowhere, sys.stdout.fileno())
    except OSError as error:
        path, reason = error.filename, error.strerror
        fail(f"{path}: {reason.lower()}" if path and reason else str(error))
    except ConfigError as error:
        fail(*str(error).split("\n"))
    except (UserError, FloatingPointError) as error:
        fail(str(error))
    except (MemoryError, RuntimeError) as error:
        from cs336_lib.system.hardware import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        fail("out of memory; try a smaller --micro-batch-size, a smaller model or fewer tokens")
    except KeyboardInterrupt:
        sys.exit(130)
