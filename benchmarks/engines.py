"""Time the sampler beside other engines, each in an environment and a process of its own.

    python -m benchmarks.generate --peers

The environments and the converted models are in build/peers, so only the first run takes long. An
environment adds an engine to our packages, because a second PyTorch would take gigabytes.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import SPINS, common
from cs336_lib import accounting, hugging_face
from cs336_lib.config import GPTConfig, UserError
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT
from cs336_lib.system import hardware

FOLDER = common.ROOT / "build" / "peers"
WORKER = Path(__file__).with_name("engine_worker.py")
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}


@dataclass(frozen=True)
class Engine:
    """An engine to measure, with several types of weights.

    Attributes:
        function: Function in engine_worker.py.
        weights: Types of weights.
        packages: Packages to install.
        spins: How often an idle OpenMP thread looks for work before it sleeps (None: its default).
    """

    function: str
    weights: tuple[str, ...]
    packages: tuple[str, ...] = ()
    spins: int | None = None


ENGINES = {
    "ours": Engine("ours", ("fp32", "fp16", "bf16", "int8")),
    # Not OMP_WAIT_POLICY=ACTIVE, because threads that never sleep would slow down the others.
    "ours, spinning": Engine("ours", ("fp32", "fp16", "bf16", "int8"), spins=SPINS),
    "transformers": Engine("transformers", ("fp32", "bf16")),
    "CTranslate2": Engine("ctranslate2", ("fp32", "bf16", "int8"), ("ctranslate2",)),
    "OpenVINO GenAI": Engine(
        "openvino", ("fp32", "fp16", "int8"), ("openvino-genai", "optimum-intel", "nncf")
    ),
    "llama.cpp": Engine(
        "llama_cpp", ("fp32", "fp16", "bf16", "int8"), ("llama-cpp-python", "gguf")
    ),
}


def run(*command: str | Path) -> str:
    """Run a command and return what it printed.

    Raises:
        UserError: If it fails. The message is its last line.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise UserError(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout


def environment(engine: Engine) -> Path:
    """Return the Python of an engine's environment, which is made at the first call.

    Raises:
        UserError: If a package can't be installed.
    """
    if not engine.packages:
        return Path(sys.executable)
    folder = FOLDER / engine.function
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=True)
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        pip = (python, "-m", "pip")
        run(*pip, "install", *engine.packages, f"torch=={torch.__version__.partition('+')[0]}")
        # Its build for CUDA doesn't load beside PyTorch's build for CPUs, and GPT-2 has no images.
        run(*pip, "uninstall", "--yes", "torchvision")
        complete.touch()
    return python


def versions(engine: Engine, python: Path) -> dict[str, str]:
    """Return the versions of the packages in an engine's environment."""
    read = "import sys, importlib.metadata as m; [print(m.version(p)) for p in sys.argv[1:]]"
    names = engine.packages or ("torch", "transformers")
    return dict(zip(names, run(python, "-c", read, *names).split(), strict=True))


def exported_model(config: GPTConfig) -> Path:
    """Return the folder of a model with random weights, in Hugging Face's layout."""
    folder = FOLDER / "models" / "hf"
    if not folder.exists():
        torch.manual_seed(0)
        hugging_face.export(GPT(config), folder, GPT2Tokenizer())
    return folder


Sampler = Callable[[list[int], int], tuple[float, list[int]]]


@contextmanager
def started(python: Path, engine: Engine, weights: str, model: Path) -> Iterator[Sampler]:
    """Start a process with a loaded model, and call it for the seconds and tokens of a text.

    Raises:
        UserError: If the process ends. The message is the last line that it printed.
    """
    # Importing cs336_lib sets these for itself. Other engines keep their own defaults.
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    if engine.spins:
        variables["GOMP_SPINCOUNT"] = str(engine.spins)
    arguments = (python, WORKER, engine.function, weights, model, str(torch.get_num_threads()))
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=common.ROOT,
            env=variables | {"PYTHONPATH": str(common.ROOT)},
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        send, receive = process.stdin, process.stdout

        def sample(prompt: list[int], count: int) -> tuple[float, list[int]]:
            print(json.dumps([prompt, count]), file=send, flush=True)
            line = receive.readline()
            if not line:
                errors.seek(0)
                raise UserError(errors.read().strip().splitlines()[-1])
            seconds, tokens = json.loads(line)
            return seconds, tokens

        yield sample
        send.close()


def equal_tokens(text: list[int], other: list[int]) -> int:
    """Return the number of leading tokens that two texts have in common."""
    pairs = zip(text, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))


@dataclass(frozen=True)
class Found:
    """Measurements by engine and weights, such as "llama.cpp int8".

    Attributes:
        seconds: Seconds of each text.
        texts: The new tokens.
        absent: Reasons for missing measurements.
        versions: Versions of the packages.
        bandwidths: Memory bandwidth in B/s after each round.
    """

    seconds: dict[str, list[float]]
    texts: dict[str, list[int]]
    absent: dict[str, str]
    versions: dict[str, str]
    bandwidths: list[float]


def sample_in_turns(model: Path, prompt: list[int], new_tokens: int, rounds: int) -> Found:
    """Start every engine, let each sample a text, and then measure them in turns."""
    found, samplers = Found({}, {}, {}, {}, []), dict[str, Sampler]()
    with ExitStack() as stack:
        for name, engine in ENGINES.items():
            try:
                python = environment(engine)
                found.versions.update(versions(engine, python))
            except UserError as error:
                found.absent[name] = str(error)
                continue
            for weights in engine.weights:
                label = f"{name} {weights}"
                print(f"starting {label}", flush=True)
                try:
                    sample = stack.enter_context(started(python, engine, weights, model))
                    found.texts[label] = sample(prompt, new_tokens)[1]
                    samplers[label] = sample
                except UserError as error:
                    found.absent[label] = str(error)
        for _ in range(rounds):
            for label, sample in samplers.items():
                found.seconds.setdefault(label, []).append(sample(prompt, new_tokens)[0])
            found.bandwidths.append(hardware.read_bandwidth(torch.device("cpu")))
    return found


def measure(config: GPTConfig, prompt_tokens: int, new_tokens: int, rounds: int) -> dict[str, Any]:
    """Measure and print how fast each engine samples with each type of weights on the CPU.

    Args:
        config: Shape of the model, whose weights are random.
        prompt_tokens: Tokens in the prompt.
        new_tokens: Tokens that are sampled, greedily.
        rounds: Measured texts of each engine, after one of warm-up.
    """
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(config.vocab_size, (prompt_tokens,), generator=generator).tolist()
    found = sample_in_turns(exported_model(config), prompt, new_tokens, rounds)
    bandwidth = common.spread(found.bandwidths)
    read = accounting.count_parameters(config) - config.block_size * config.n_embd
    reference, rows = "ours fp32", dict[str, dict[str, Any]]()
    for label, seconds in found.seconds.items():
        weights = label.rpartition(" ")[2]
        limit = 1000 * read * BYTES[weights] / bandwidth["median"]
        spread = common.spread([1000 * value / new_tokens for value in seconds])
        rows[label] = {
            "ms_per_token": spread,
            "times_ours": common.ratio(seconds, found.seconds[f"ours {weights}"]),
            "limit_ms_per_token": limit,
            "equal_tokens": equal_tokens(found.texts[label], found.texts[reference]),
        }
        print(
            f"{label:22} {spread['median']:6.1f} ms/token ({spread['lowest']:.1f} to "
            f"{spread['highest']:.1f})  {rows[label]['times_ours']:5.2f} x ours  "
            f"{limit / spread['median']:4.0%} of the bandwidth  "
            f"first {rows[label]['equal_tokens']} of {new_tokens} tokens as fp32"
        )
    for label, reason in found.absent.items():
        print(f"{label:22} absent: {reason}")
    print(f"A sum reads {bandwidth['median'] / 1e9:.1f} GB/s in the median round.")
    return {
        "machine": common.machine(torch.device("cpu")) | {"versions": found.versions},
        "setup": {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens},
        "engines": rows,
        "absent": found.absent,
        "read_bytes_per_second": bandwidth,
    }
