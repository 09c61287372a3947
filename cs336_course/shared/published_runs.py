"""Read published training runs and steps, and the errors of their simulation."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from cs336_lib import accounting
from cs336_lib.accounting import Architecture
from cs336_lib.bill import models
from cs336_lib.bill.simulate import Cluster, Workload
from cs336_lib.bill.traffic import Layout
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json
from cs336_lib.system.datasheets import DATASHEET, LINKS


@dataclass(frozen=True)
class PublishedRun:
    """A training run as its authors describe it. `None` stands for what wasn't published.

    Attributes:
        title: Name of the run.
        source: Where the figures come from.
        architecture: Shape of the model.
        seq: Tokens in a sequence.
        tokens: Tokens of the whole run.
        devices: Number of devices.
        device: Key of their datasheet.
        precision: Number format of the matmuls.
        layout: How the model was spread over the devices.
        mfu: Utilization as stated, as a fraction of the peak.
        convention: Which FLOPs the utilization counts: those of "palm" or "causal" (see
            `accounting`), or "recomputed" (all keys, and a second forward pass).
        stated: The time as stated: days, device_hours, tokens_per_second or seconds_per_step.
        reason: Why the prediction can't be made or differs by more than 5%.
    """

    title: str
    source: str
    architecture: Architecture | None
    seq: int | None
    tokens: float | None
    devices: int | None
    device: str
    precision: str
    layout: str
    mfu: float | None
    convention: str
    stated: dict[str, float]
    reason: str


def runs() -> dict[str, PublishedRun]:
    """Return the published runs of data/runs.json by name."""
    found = {}
    for name, entry in read_json(DATA / "runs.json").items():
        fields = dict(entry)
        model, shape = fields.pop("model", ""), fields.pop("shape", None)
        built = Architecture(**shape) if shape else None
        fields["architecture"] = models.model(model).architecture if model else built
        found[name] = PublishedRun(**{"reason": "", **fields})
    return found


@dataclass(frozen=True)
class PublishedStep:
    """A training step whose layout and speed were published.

    Attributes:
        paper: The publication that has them, which is left out of a fit as a whole.
        stack: The key of `stacks.STACKS` that is nearest to its program.
        work: The model and its layout.
        cluster: The devices and links.
        mfu: Utilization as stated, or computed from the stated speed. It counts as "palm".
        too_large: Why our count of its memory exceeds that of a device, or "" if it doesn't.
    """

    paper: str
    stack: str
    work: Workload
    cluster: Cluster
    mfu: float
    too_large: str


def steps() -> dict[str, PublishedStep]:
    """Return the published steps of data/layouts.json by name."""
    found = {}
    for name, entry in read_json(DATA / "layouts.json").items():
        fields = dict(entry)
        words = {key: fields.pop(key, "") for key in ("paper", "stack", "too_large")}
        fields = {key: fields[key] for key in fields.keys() - {"source", "stated", "assumed"}}
        mfu, seconds = fields.pop("mfu", None), fields.pop("step", None)
        model, shape, config = (fields.pop(key, None) for key in ("model", "shape", "config"))
        if model:
            a = models.model(model).architecture
        else:
            a = models.from_hugging_face(config, name) if config else Architecture(**shape)
        device = DATASHEET[fields.pop("device")]
        device = replace(device, bandwidth=fields.pop("bandwidth", device.bandwidth))
        links = LINKS[fields.pop("inner")], LINKS[fields.pop("outer")]
        cluster = Cluster(device, *links, cards=fields.pop("cards", 8))
        passes = ("seq", "recompute", "fused_attention", "sequence", "overlap", "async_tensor")
        rest = {key: fields.pop(key) for key in passes if key in fields}
        work = Workload(a, Layout(**fields), **rest)
        if mfu is None:
            tokens = work.layout.batch * work.seq / work.layout.devices
            flops = tokens * accounting.train_flops_per_token(a, work.seq)
            mfu = flops / seconds / device.peak_flops["bf16"]
        found[name] = PublishedStep(work=work, cluster=cluster, mfu=mfu, **words)
    return found


def left_out() -> dict[str, float]:
    """Return the stated over the simulated seconds of each step, by a fit without its paper.

    `tools.fit_simulator` writes them to data/simulator_fit.json.
    """
    return dict(read_json(DATA / "simulator_fit.json")["ratios"])


def one_mfu(guess: float | None = None) -> dict[str, float]:
    """Return the stated over the guessed seconds of each step, if all programs had one MFU.

    Args:
        guess: The MFU (None: the median of the steps of all other papers, so no paper helps to
            guess itself).
    """
    published, found = steps(), {}
    for name, step in published.items():
        others = [other.mfu for other in published.values() if other.paper != step.paper]
        found[name] = (guess or median(others)) / step.mfu
    return found


def quantile(ratios: dict[str, float], share: float) -> float:
    """Return a quantile of steps' ratios, in which each paper counts equally.

    Args:
        ratios: By name of a step, as from `left_out`.
        share: 0.5 for the median.
    """
    published = steps()
    sizes = Counter(published[name].paper for name in ratios)
    pairs = sorted((ratio, 1 / sizes[published[name].paper]) for name, ratio in ratios.items())
    below = accumulate(weight for _, weight in pairs)
    return next(
        ratio
        for (ratio, _), sum_ in zip(pairs, below, strict=True)
        if sum_ >= share * len(sizes) - 1e-9
    )
