"""Train GPT-2 in one file, on one device or on many.

    python train_gpt2.py --data fineweb
    torchrun --standalone --nproc-per-node=8 train_gpt2.py --data fineweb --micro-batch-size=64

The defaults are GPT-2 124M's recipe. The same command resumes a run that was interrupted.
"""

import json
import math
import os
import sys
import time
import zipfile
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # so that torch's waiting threads sleep

import numpy as np
import tiktoken
import torch
import torch.distributed as dist
import torch.nn.functional as F
import tyro
from einops import rearrange
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """The model's shape and the recipe."""

    data: str = "fineweb"  # folder of shards of tokens, which `cs336 prepare` writes
    out: str = "log"  # folder of the log, the checkpoint and the weights
    init_from: str = ""  # model.safetensors of an earlier run or of a Hugging Face GPT-2
    hellaswag: str = ""  # HellaSwag's examples, in JSON lines
    prompt: str = "Hello, I'm a language model,"  # which evaluations continue ("": a new text)
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    block_size: int = 1024
    vocab_size: int = 50257  # of GPT-2's tokenizer; data in letters bring their own
    max_steps: int = 19073  # of 524,288 tokens each, so 10 billion in all
    batch_tokens: int = 524288
    micro_batch_size: int = 16
    learning_rate: float = 6e-4
    min_learning_rate: float = 6e-5
    warmup_steps: int = 715
    weight_decay: float = 0.1
    grad_clip: float = 1.0  # 0 doesn't clip
    seed: int = 1337
    eval_every: int = 1000  # steps between evaluations, each of which saves the run
    eval_tokens: int = 10485760
    bf16: bool = torch.cuda.is_available()
    compile: bool = torch.cuda.is_available()
    peak_tflops: float = 0  # of all devices, by their datasheet; then each step has an MFU

    @property
    def padded_vocab_size(self) -> int:  # a multiple of 64 is faster on a GPU
        return -(-self.vocab_size // 64) * 64


# =========================================== Model ============================================


def embed(idx: Tensor, wte: nn.Embedding, wpe: nn.Embedding) -> Tensor:
    """Add the embeddings of tokens (batch, seq) and of their positions."""
    positions = torch.arange(idx.size(1), device=idx.device)
    return wte(idx) + wpe(positions)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Mix values (batch, head, seq, head_dim), each position with itself and earlier ones."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class CausalSelfAttention(nn.Module):
    """Multi-head attention, between a linear layer for q, k and v and one for the output."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        pattern = "batch seq (three head head_dim) -> three batch head seq head_dim"
        q, k, v = rearrange(self.c_attn(x), pattern, three=3, head=self.n_head)
        y = attention(q, k, v)
        return self.c_proj(rearrange(y, "batch head seq head_dim -> batch seq (head head_dim)"))


class MLP(nn.Module):
    """Two linear layers with a GELU between them and a hidden width of 4 n_embd."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and an MLP, which normalize their input and add to the residual stream."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


@torch.no_grad()
def init_weights(model: nn.Module) -> None:
    """Draw GPT-2's initial weights, with a smaller std where a block writes to the stream."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif ".ln_" in name:
            parameter.fill_(1.0)
        elif "c_proj" in name:
            parameter.normal_(0.0, 0.02 / math.sqrt(2 * model.config.n_layer))
        else:
            parameter.normal_(0.0, 0.02)


class GPT(nn.Module):
    """GPT-2, with the parameter names of Hugging Face's checkpoint."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        wte = nn.Embedding(config.padded_vocab_size, config.n_embd)
        wpe = nn.Embedding(config.block_size, config.n_embd)
        h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        ln_f = nn.LayerNorm(config.n_embd)
        self.transformer = nn.ModuleDict({"wte": wte, "wpe": wpe, "h": h, "ln_f": ln_f})
        self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)
        self.lm_head.weight = wte.weight
        init_weights(self)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return logits (batch, seq, vocab_size), or the mean loss in nats if targets are given."""
        x = embed(idx, self.transformer.wte, self.transformer.wpe)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))[..., : self.config.vocab_size]
        if targets is None:
            return logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def is_linear(name: str) -> bool:
    """Return whether the tensor is a linear layer's weight, which OpenAI stores as (in, out)."""
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


def published_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters in OpenAI's layout, without padded rows."""
    theirs = model.transformer.state_dict(prefix="transformer.")
    theirs["transformer.wte.weight"] = theirs["transformer.wte.weight"][: model.config.vocab_size]
    return {n: (t.t() if is_linear(n) else t).contiguous() for n, t in theirs.items()}


def load_weights(model: nn.Module, theirs: dict[str, Tensor]) -> None:
    """Copy a checkpoint in OpenAI's layout into the model, or raise a ValueError."""
    theirs = {name.removeprefix("transformer."): tensor for name, tensor in theirs.items()}
    ours = {n: t.t() if is_linear(n) else t for n, t in model.transformer.state_dict().items()}
    ours["wte.weight"] = ours["wte.weight"][: model.config.vocab_size]
    theirs["wpe.weight"] = theirs.get("wpe.weight", torch.empty(0))[: model.config.block_size]
    for name in ours | theirs:
        was, now = (tuple(w[name].shape) if name in w else "nothing" for w in (ours, theirs))
        if was != now and not name.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight")):
            raise ValueError(f"{name}: the model has {was}, the file {now}")
    if not torch.equal(theirs.get("lm_head.weight", theirs["wte.weight"]), theirs["wte.weight"]):
        raise ValueError("lm_head.weight: the file has a table of its own, the model only wte")
    for name, tensor in ours.items():
        tensor.copy_(theirs[name])


def nucleus(probabilities: Tensor, p: float) -> Tensor:
    """Keep the fewest likeliest tokens of (batch, vocab) that reach p, and rescale them."""
    ordered, order = probabilities.sort(descending=True)
    kept = ordered.where(ordered.cumsum(-1) - ordered < p, 0.0)
    return torch.zeros_like(kept).scatter(-1, order, kept / kept.sum(-1, keepdim=True))


@torch.no_grad()
def generate(model, idx: Tensor, new_tokens: int, temperature=1.0, top_k=50, top_p=1.0) -> Tensor:
    """Continue token ids (batch, seq), one token at a time."""
    for _ in range(new_tokens):
        logits = model(idx[:, -model.config.block_size :])[:, -1] / temperature
        logits = logits.masked_fill(logits < logits.sort().values[:, -top_k:][:, :1], -math.inf)
        idx = torch.cat((idx, torch.multinomial(nucleus(logits.softmax(-1), top_p), 1)), dim=1)
    return idx


# ============================================ Data ============================================


def open_tokenizer(folder: str) -> tiktoken.Encoding:
    """Return the tokenizer of the data: letters if tokenizer.json lists them, otherwise GPT-2's."""
    path = Path(folder, "tokenizer.json")
    if not any(Path(folder).glob("*.bin")):
        raise SystemExit(f"{folder} has no shards; `cs336 prepare` writes them")
    alphabet = json.loads(path.read_text()).get("alphabet") if path.exists() else None
    if alphabet:
        ranks = {letter.encode(): i for i, letter in enumerate(alphabet)}
        known = "[" + "".join(rf"\x{{{ord(letter):x}}}" for letter in alphabet) + "]"
        return tiktoken.Encoding("letters", pat_str=known, mergeable_ranks=ranks, special_tokens={})
    try:
        return tiktoken.get_encoding("gpt2")
    except OSError:
        raise SystemExit("go online for GPT-2's tokenizer, or set TIKTOKEN_CACHE_DIR") from None


class Tokens:
    """Shards in llm.c's format (a header of 1,024 bytes, then uint16 tokens), as one stream."""

    def __init__(self, folder: str, split: str, config):
        paths, self.vocab_size = sorted(Path(folder).glob(f"*{split}*.bin")), config.vocab_size
        for path in paths:
            length = (path.stat().st_size - 1024) / 2
            if np.fromfile(path, np.int32, 3).tolist() != [20240520, 1, length]:
                raise SystemExit(f"{path}: not a whole llm.c shard; `cs336 prepare` writes them")
        self.shards = [np.memmap(path, np.uint16, "r", offset=1024) for path in paths]
        self.begins = np.cumsum([0, *map(len, self.shards)]).tolist()
        count = (len(self) - 1) // config.block_size  # of the windows, which training shuffles
        if count < 1:
            raise SystemExit(f"{folder}: {len(self)} {split} tokens; `cs336 prepare` writes them")
        self.starts = np.random.default_rng(config.seed).permutation(count) * config.block_size

    def __len__(self) -> int:
        return self.begins[-1]

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on, perhaps from several shards."""
        shard = np.searchsorted(self.begins, start, "right") - 1
        tokens = self.shards[shard][start - self.begins[shard] :][:count]
        if tokens.max() >= self.vocab_size:
            raise SystemExit(f"token {tokens.max()} is too large for {self.vocab_size} tokens")
        rest = count - len(tokens)
        return np.concatenate((tokens, self.read(start + len(tokens), rest))) if rest else tokens


def windows(tokens: Tokens, starts: list[int], block_size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (len(starts), block_size) from these positions on."""
    rows = np.stack([tokens.read(start, block_size + 1) for start in starts])
    both = torch.from_numpy(rows.astype(np.int64))
    return both[:, :-1], both[:, 1:]


def join_processes() -> torch.device:
    """Join torchrun's other processes, if there are any, and return this process's device."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        return torch.device("cuda")  # from now on the one of LOCAL_RANK
    return torch.device("mps" if torch.backends.mps.is_available() and world == 1 else "cpu")


def rank_and_world() -> tuple[int, int]:
    """Return this process's number, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Add up a tensor over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def micro_batches(tokens: Tokens, step: int, config):
    """Yield this process's micro-batches of a step, of the next windows in the shuffled order."""
    rank, world = rank_and_world()
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    for first in range(step * batch + rank * size, (step + 1) * batch, world * size):
        starts = [tokens.starts[n % len(tokens.starts)] for n in range(first, first + size)]
        yield windows(tokens, starts, config.block_size)


# ========================================= Optimizer ==========================================


def learning_rate(step: int, config) -> float:
    """Return the rate of a step, after a linear warm-up on half a cosine."""
    peak, lowest, warmup = config.learning_rate, config.min_learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step + 1 - warmup) / (config.max_steps - warmup)
    return lowest + (peak - lowest) * (1 + math.cos(math.pi * progress)) / 2


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Decay matrices and embeddings, but no biases and gains."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0}]


def make_optimizer(model: nn.Module, config) -> torch.optim.AdamW:
    """Make AdamW with GPT-3's betas, which updates all parameters in one fused kernel."""
    groups = parameter_groups(model, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def update(model: nn.Module, optimizer, rate: float, grad_clip: float) -> Tensor:
    """Clip the gradient, step with this learning rate, and return the norm before clipping."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    return norm


# ========================================= Evaluation =========================================


@torch.no_grad()
def evaluate(model: nn.Module, tokens: Tokens, config, autocast) -> Tensor:
    """Return the mean loss over evenly spaced windows, which all processes share."""
    rank, world = rank_and_world()
    available = (len(tokens) - 1) // config.block_size
    count = max(1, min(available, config.eval_tokens // config.block_size))
    starts = [i * available // count * config.block_size for i in range(rank, count, world)]
    total = torch.zeros((), device=model.lm_head.weight.device)
    for first in range(0, len(starts), config.micro_batch_size):
        x, y = windows(tokens, starts[first : first + config.micro_batch_size], config.block_size)
        with autocast:
            total += model(x.to(total.device), y.to(total.device)) * len(x) / count
    return sum_over_processes(total)


def ending_losses(model: nn.Module, contexts: list, endings: list) -> Tensor:
    """Return the mean loss of each ending's tokens after its context, from one forward pass."""
    size, device = model.config.block_size + 1, model.lm_head.weight.device
    texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, strict=True)]
    rows = nn.utils.rnn.pad_sequence(texts, batch_first=True).to(device)  # padding comes last
    logits, after = model(rows[:, :-1]), rows[:, 1:]  # and the token that comes next
    pairs = zip(texts, endings, strict=True)
    spans = [slice(max(len(t) - 1 - len(e), 0), len(t) - 1) for t, e in pairs]
    found = zip(logits, after, spans, strict=True)
    return torch.stack([F.cross_entropy(row[s].float(), targets[s]) for row, targets, s in found])


def read_examples(path: str, encode) -> list[tuple[list[int], list[list[int]], int]]:
    """Read HellaSwag's examples: tokens of a context and of four endings, and which is right."""
    try:
        rows = [json.loads(row) for row in Path(path).read_text("utf-8").split("\n") if row] or [{}]
        examples = []
        for row in rows:
            context, label = encode(row["ctx"]), ["0", "1", "2", "3"].index(str(row["label"]))
            a, b, c, d = (encode(" " + ending) for ending in row["endings"])
            if not context:
                raise ValueError("an empty ctx")
            examples.append((context, [a, b, c, d], label))
        return examples
    except (OSError, ValueError, LookupError, TypeError) as error:
        wanted = "lines with ctx, four endings and a label of 0 to 3"
        raise SystemExit(f"{path}: {error!r}; {wanted} expected") from None


@torch.no_grad()
def hellaswag(model: nn.Module, examples: list, autocast) -> float:
    """Return the share of examples whose true ending has the lowest loss."""
    rank, world = rank_and_world()
    right = torch.zeros((), device=model.lm_head.weight.device)
    for context, endings, label in examples[rank::world]:
        with autocast:
            right += ending_losses(model, [context] * 4, endings).argmin() == label
    return sum_over_processes(right).item() / len(examples)


# ============================================ Loop ============================================


class Buckets:
    """Gradients on their way: a full bucket leaves while backward computes the next one."""

    def __init__(self, size: int = 6_250_000):  # 25 MB in fp32, as in PyTorch's DDP
        self.size, self.waiting, self.travelling = size, [], []

    def add(self, parameter: Tensor) -> None:
        """Take a gradient that is complete, and send those that wait once they fill a bucket."""
        self.waiting.append(parameter.grad)
        if sum(gradient.numel() for gradient in self.waiting) >= self.size:
            self.send()

    def send(self) -> None:
        """Start to add up the waiting gradients over all processes, as one tensor."""
        bucket = torch.cat([gradient.flatten() for gradient in self.waiting])
        call = dist.all_reduce(bucket, async_op=True)
        self.travelling.append((call, bucket, self.waiting))
        self.waiting = []

    def arrive(self) -> None:
        """Send the rest, wait for all buckets, and write the sums into the gradients."""
        if self.waiting:
            self.send()
        for call, bucket, gradients in self.travelling:
            call.wait()
            sums = bucket.split([gradient.numel() for gradient in gradients])
            for gradient, total in zip(gradients, sums, strict=True):
                gradient.copy_(total.view_as(gradient))


def backward(model: nn.Module, pieces, count: int, autocast) -> Tensor:
    """Add up the gradients of micro-batches, of which the batch has `count`; return the loss."""
    total = torch.zeros((), device=model.lm_head.weight.device)
    buckets, hooks, world = Buckets(), [], rank_and_world()[1]
    for number, (x, y) in enumerate(pieces, 1):
        with autocast:
            loss = model(x.to(total.device), y.to(total.device)) / count
        if world > 1 and number == count // world:  # this pass completes the gradients
            hooks = [p.register_post_accumulate_grad_hook(buckets.add) for p in model.parameters()]
        loss.backward()
        total += loss.detach()
    for hook in hooks:
        hook.remove()
    buckets.arrive()
    return sum_over_processes(total)


def train(model, optimizer, batches, val_tokens, config, autocast, first_step=0):
    """Train on the micro-batches that `batches(step)` gives, and yield each step's numbers."""
    count = config.batch_tokens // config.block_size // config.micro_batch_size
    for step in range(first_step, config.max_steps):
        begun, rate = time.perf_counter(), learning_rate(step, config)
        loss = backward(model, batches(step), count, autocast)
        norm = update(model, optimizer, rate, config.grad_clip or math.inf)
        row = {"step": step, "loss": loss.item(), "lr": rate, "grad_norm": norm.item()}
        row["seconds"] = time.perf_counter() - begun  # .item() has waited for the device
        if (step + 1) % config.eval_every == 0 or step + 1 == config.max_steps:
            row["val_loss"] = evaluate(model, val_tokens, config, autocast).item()
        yield row


def fast(model: nn.Module, config):
    """Use tensor cores, bf16 and the compiler; return the compiled model and the autocast."""
    torch.set_float32_matmul_precision("high")  # TF32
    autocast = torch.autocast(model.lm_head.weight.device.type, torch.bfloat16, config.bf16)
    return torch.compile(model) if config.compile else model, autocast


def save(out: Path, model: nn.Module, optimizer, config, step: int) -> None:
    """Save the weights as transformers reads them, and all that a resumed run needs."""
    shape = asdict(config) | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    shape |= {"n_positions": config.block_size, "n_ctx": config.block_size}
    (out / "config.tmp").write_text(json.dumps(shape))
    save_file(published_weights(model), out / "model.tmp", metadata={"format": "pt"})
    os.chmod(out / "model.tmp", 0o644)  # save_file lets only its owner read it
    state = {"step": step, "log": (out / "log.jsonl").read_text(), "config": asdict(config)}
    state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, out / "checkpoint.tmp")
    for name in ("config.json", "model.safetensors", "checkpoint.pt"):  # the checkpoint commits
        with open((out / name).with_suffix(".tmp"), "rb+") as file:
            os.fsync(file.fileno())  # else a power cut may leave a name without its bytes
        if name == "checkpoint.pt" and (out / name).exists():
            os.replace(out / name, out / "previous.pt")
        os.replace(file.name, out / name)


def locked(out: Path):
    """Make the folder of a run, and return a lock that keeps other processes out of it."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(out / "lock").acquire(timeout=0)
    except Timeout:
        raise SystemExit(f"{out}: another process trains there; use another --out") from None


def newest(paths: list[Path]) -> dict:
    """Return the first checkpoint that is as it was saved."""
    for path in paths:
        with suppress(Exception):  # damaged bytes can raise anything
            if zipfile.ZipFile(path).testzip() is None:  # torch saves checksums, but ignores them
                return torch.load(path, map_location="cpu", weights_only=True)
        print(f"{path} is damaged", flush=True)
    raise SystemExit(f"restore {paths[0]} from a copy, or use another --out")


def resume(out: Path, model: nn.Module, optimizer, config) -> int:
    """Load the newest checkpoint of an interrupted run, if there is one, and return its step."""
    paths = [path for path in (out / "checkpoint.pt", out / "previous.pt") if path.exists()]
    if not paths:
        (out / "log.jsonl").write_text("")
        return 0
    state = newest(paths)
    free = "data out init_from hellaswag prompt max_steps micro_batch_size eval_every eval_tokens"
    free += " bf16 compile peak_tflops"
    for name, was in state["config"].items():
        if name not in free.split() and was != (now := getattr(config, name)):
            raise SystemExit(f"{out} holds a run with {name}={was}, not {now}; use another --out")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    (out / "log.jsonl").write_text(state["log"])  # the steps after the checkpoint are done again
    return state["step"]


def report(row: dict, model, optimizer, tokenizer, examples: list, config, autocast) -> None:
    """Judge an evaluated step, log and print the numbers of any step, and save the run."""
    if not all(map(math.isfinite, row.values())):
        raise SystemExit(f"{row}; begin another --out with a lower --learning-rate")
    row["tokens_per_second"] = config.batch_tokens / row["seconds"]
    if config.peak_tflops:
        weights = sum(p.numel() for p in model.parameters()) - model.transformer.wpe.weight.numel()
        flops = 6 * weights + 12 * config.n_layer * config.n_embd * config.block_size  # per token
        row["mfu"] = row["tokens_per_second"] * flops / (config.peak_tflops * 1e12)
    if is_evaluated := "val_loss" in row:
        row |= {"hellaswag": hellaswag(model, examples, autocast)} if examples else {}
        torch.manual_seed(row["step"])  # so that a resumed run writes the same
        prompt = tokenizer.encode(config.prompt, allowed_special="all") or [tokenizer.n_vocab - 1]
        prompt = torch.tensor([prompt], device=model.lm_head.weight.device)
        row["sample"] = tokenizer.decode(generate(model, prompt, 256)[0].tolist())
    if rank_and_world()[0] == 0:
        with open(Path(config.out, "log.jsonl"), "a") as log:
            log.write(json.dumps(row) + "\n")
        if is_evaluated:
            save(Path(config.out), model, optimizer, config, row["step"] + 1)
        numbers = (f"{name} {value:.5g}" for name, value in row.items() if name != "sample")
        print(", ".join(numbers), *row.get("sample", "").splitlines(), sep="\n", flush=True)


def load_start(model: nn.Module, path: Path) -> None:
    """Load weights, unless their config.json names what this model doesn't compute."""
    known = {"activation_function": ["gelu_new", "gelu_pytorch_tanh"], "layer_norm_epsilon": [1e-5]}
    known |= {"scale_attn_weights": [True], "scale_attn_by_inverse_layer_idx": [False]}
    try:
        config = path.with_name("config.json")
        found = json.loads(config.read_text()) if config.exists() else {}
        for name, values in known.items():
            if found.get(name, values[0]) not in values:
                raise ValueError(f"config.json has {name} {found[name]}, not {values[0]}")
        load_weights(model, load_file(path))
    except Exception as error:  # no such file, or one of another kind or shape
        raise SystemExit(f"{path}: {error}") from None


def main(config: Config) -> None:
    """Train GPT-2 into the folder `config.out`, from the start or from its checkpoint on."""
    out, device, tokenizer = Path(config.out), join_processes(), open_tokenizer(config.data)
    (rank, world), config = rank_and_world(), replace(config, vocab_size=tokenizer.n_vocab)
    if config.batch_tokens % (config.micro_batch_size * config.block_size * world):
        raise SystemExit("batch_tokens must be a multiple of micro-batch x block_size x processes")
    train_tokens, val_tokens = (Tokens(config.data, split, config) for split in ("train", "val"))
    examples = read_examples(path, tokenizer.encode_ordinary) if (path := config.hellaswag) else []
    torch.manual_seed(config.seed)
    model = GPT(config)
    if config.init_from:
        load_start(model, Path(config.init_from))
    fast_model, autocast = fast(model.to(device), config)
    optimizer = make_optimizer(model, config)

    def batches(step: int):
        return micro_batches(train_tokens, step, config)

    with locked(out) if rank == 0 else nullcontext():
        sum_over_processes(torch.zeros(1, device=device))  # which waits for rank 0 and its lock
        first_step = resume(out, model, optimizer, config)
        msg = f"{out} goes on from step {first_step} of {config.max_steps}"
        if first_step == 0:
            msg = f"val_loss {evaluate(fast_model, val_tokens, config, autocast):.5g} before step 0"
        if rank == 0:
            print(msg, flush=True)
        for row in train(fast_model, optimizer, batches, val_tokens, config, autocast, first_step):
            report(row, model, optimizer, tokenizer, examples, config, autocast)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # so that a terminal's encoding can't end a run
    main(tyro.cli(Config))
