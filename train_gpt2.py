"""Train GPT-2 in one file, on one device or on many.

    python train_gpt2.py --train "fineweb/train_*.bin" --val "fineweb/val_*.bin"
    torchrun --standalone --nproc-per-node=8 train_gpt2.py --train ... --val ...

The defaults are GPT-2 124M's recipe on 10 billion tokens. Notebooks 07 to 10 build each part.
"""

import glob
import json
import math
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # so that torch's waiting threads sleep

import numpy as np
import tiktoken
import torch
import torch.distributed as dist
import torch.nn.functional as F
import tyro
from einops import rearrange
from safetensors.torch import load_file, save
from tiktoken.load import load_tiktoken_bpe
from tiktoken_ext.openai_public import r50k_pat_str
from torch import Tensor, nn


@dataclass
class Config:
    """The model's shape and the recipe."""

    train: str = "fineweb/train_*.bin"  # shards of GPT-2's tokens, in llm.c's format
    val: str = "fineweb/val_*.bin"
    out: str = "log"
    init_from: str = ""  # model.safetensors of an earlier run or a Hugging Face GPT-2
    hellaswag: str = ""  # HellaSwag's examples, in JSON lines
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    block_size: int = 1024
    vocab_size: int = 50257
    padded_vocab_size: int = 50304  # a multiple of 64
    max_steps: int = 19073  # of 524,288 tokens each, so 10 billion in all
    batch_tokens: int = 524288
    micro_batch_size: int = 16
    learning_rate: float = 6e-4
    min_learning_rate: float = 6e-5
    warmup_steps: int = 715
    weight_decay: float = 0.1
    grad_clip: float = 1.0  # 0 doesn't clip
    seed: int = 1337
    eval_every: int = 250  # steps between evaluations and saved weights; 0: only at the end
    eval_tokens: int = 1048576
    bf16: bool = True
    compile: bool = torch.cuda.is_available()


def embed(idx: Tensor, wte: nn.Embedding, wpe: nn.Embedding) -> Tensor:
    """Add the embeddings of tokens (batch, seq) and of their positions."""
    positions = torch.arange(idx.size(1), device=idx.device)
    return wte(idx) + wpe(positions)


class MLP(nn.Module):
    """Two linear layers with a GELU between them and a hidden width of 4 n_embd."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


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
    """GPT-2, with the parameter names of OpenAI's checkpoint."""

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


@torch.no_grad()
def load_weights(model: nn.Module, theirs: dict[str, Tensor]) -> None:
    """Copy OpenAI's tensors into the model. Their linear layers are stored as (in, out)."""
    ours = dict(model.named_parameters())
    for name, tensor in theirs.items():
        name = "transformer." + name.removeprefix("transformer.")
        if name in ours:  # there are also causal masks
            is_linear = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
            tensor = tensor.t() if is_linear else tensor
            ours[name][: len(tensor)] = tensor[: len(ours[name])]


@torch.no_grad()
def generate(model: nn.Module, idx: Tensor, new_tokens: int, top_k: int = 50) -> Tensor:
    """Continue token ids (batch, seq), drawing from the `top_k` likeliest tokens."""
    for _ in range(new_tokens):
        logits = model(idx[:, -model.config.block_size :])[:, -1]
        kth = logits.topk(top_k).values[:, -1:]
        probabilities = logits.masked_fill(logits < kth, -math.inf).softmax(-1)
        idx = torch.cat((idx, torch.multinomial(probabilities, 1)), dim=1)
    return idx


class Tokens:
    """Shards of uint16 tokens after a header of 1,024 bytes, read as one stream."""

    def __init__(self, pattern: str, vocab_size: int = 50257):
        paths, self.vocab_size = sorted(glob.glob(pattern)), vocab_size
        if not paths:
            raise SystemExit(f"no shards match {pattern!r}; `cs336 prepare` writes them")
        for path in paths:
            length = (Path(path).stat().st_size - 1024) / 2
            if np.fromfile(path, np.int32, 3).tolist() != [20240520, 1, length]:
                raise SystemExit(f"{path}: not a whole llm.c shard; `cs336 prepare` writes them")
        self.shards = [np.memmap(path, np.uint16, "r", offset=1024) for path in paths]
        self.begins = np.cumsum([0, *map(len, self.shards)]).tolist()

    def __len__(self) -> int:
        return self.begins[-1]

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on, perhaps from two shards."""
        places = ((max(start - begin, 0), start + count - begin) for begin in self.begins)
        pairs = zip(self.shards, places, strict=False)
        tokens = np.concatenate([shard[low:high] for shard, (low, high) in pairs if high > 0])
        if tokens.max() >= self.vocab_size:
            raise SystemExit(f"token {tokens.max()} is too large: vocab_size is {self.vocab_size}")
        return tokens


def windows(tokens: Tokens, starts: list[int], block_size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (len(starts), block_size) from these positions on."""
    rows = np.stack([tokens.read(start, block_size + 1) for start in starts])
    both = torch.from_numpy(rows.astype(np.int64))
    return both[:, :-1], both[:, 1:]


@cache
def scrambled(*numbers: int) -> int:
    """Hash numbers to 64 bits."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def shuffled(i: int, n: int, key: int) -> int:
    """Return element i of 0..n-1 in shuffled order, without storing the order."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = 2**half - 1
    while True:
        left, right = i >> half, i & mask
        for turn in range(4):  # a Feistel network permutes the numbers of 2 * half bits
            z = (right + scrambled(key, turn)) % 2**64
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
            left, right = right, left ^ (z ^ z >> 31) & mask
        i = left << half | right
        if i < n:
            return i


def window_start(number: int, length: int, config) -> int:
    """Return where training's window `number` begins, in an order that visits all windows."""
    size = config.block_size
    cycle, number = divmod(number, length - size)
    for epoch in range(size):  # an epoch cuts the stream from another offset on
        offset = shuffled(epoch, size, scrambled(config.seed, cycle) >> 1)
        in_epoch = (length - 1 - offset) // size
        if number < in_epoch:
            break
        number -= in_epoch
    return offset + size * shuffled(number, in_epoch, scrambled(config.seed, cycle, epoch) >> 1)


def learning_rate(step: int, config) -> float:
    """Return the rate of a step, after a linear warm-up on half a cosine."""
    peak, lowest, warmup = config.learning_rate, config.min_learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    first = max(warmup - 1, 0)
    progress = (step - first) / max(config.max_steps - 1 - first, 1)
    return lowest + (peak - lowest) * (1 + math.cos(math.pi * min(progress, 1))) / 2


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Decay matrices and embeddings, but no biases and gains."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def update(model: nn.Module, optimizer, rate: float, grad_clip: float) -> Tensor:
    """Clip the gradient, step with this learning rate, and return the norm before clipping."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    return norm


def backward(model: nn.Module, pieces, count: int, autocast) -> Tensor:
    """Add up the gradients of micro-batches, of which the batch has `count`; return the loss."""
    total = torch.zeros((), device=model.lm_head.weight.device)
    for x, y in pieces:
        with autocast:
            loss = model(x.to(total.device), y.to(total.device)) / count
        loss.backward()
        total += loss.detach()
    return total


@torch.no_grad()
def evaluate(model: nn.Module, tokens: Tokens, config, autocast, rank=0, world=1) -> Tensor:
    """Return this process's share of the mean loss over evenly spaced windows."""
    available = (len(tokens) - 1) // config.block_size
    count = max(1, min(available, config.eval_tokens // config.block_size))
    starts = [i * available // count * config.block_size for i in range(rank, count, world)]
    total = torch.zeros((), device=model.lm_head.weight.device)
    model.eval()
    for first in range(0, len(starts), config.micro_batch_size):
        mine = starts[first : first + config.micro_batch_size]
        x, y = windows(tokens, mine, config.block_size)
        with autocast:
            total += model(x.to(total.device), y.to(total.device)) * len(mine) / count
    model.train()
    return total


def make_optimizer(model: nn.Module, config) -> torch.optim.AdamW:
    """Make AdamW with GPT-3's betas, which updates all parameters in one fused kernel."""
    groups = parameter_groups(model, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def fast(model: nn.Module, config):
    """Use tensor cores, bf16 and the compiler; return the compiled model and the autocast."""
    torch.set_float32_matmul_precision("high")  # TF32
    device = model.lm_head.weight.device.type
    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=config.bf16)
    return torch.compile(model) if config.compile else model, autocast


def micro_batches(tokens: Tokens, step: int, config, rank: int, world: int):
    """Yield this process's share of a step's micro-batches."""
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    for first in range(step * batch + rank * size, (step + 1) * batch, world * size):
        numbers = range(first, first + size)
        starts = [window_start(number, len(tokens), config) for number in numbers]
        yield windows(tokens, starts, config.block_size)


def start() -> tuple[int, int, torch.device]:
    """Join torchrun's other processes; return the rank, their number and the device."""
    rank, local = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return rank, world, device


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Add up a tensor over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def sum_gradients(model: nn.Module) -> None:
    """Add up the gradients of all processes, once a step."""
    for parameter in model.parameters():
        sum_over_processes(parameter.grad)


def most_likely(model: nn.Module, context: list[int], endings: list[list[int]]) -> int:
    """Return which ending has the lowest mean loss per token."""
    losses = []
    for ending in endings:
        row = torch.tensor([context + ending], device=model.lm_head.weight.device)
        row = row[:, -model.config.block_size - 1 :]
        logits = model(row[:, :-1])[0, -len(ending) :].float()
        losses.append(F.cross_entropy(logits, row[0, -len(ending) :]).item())
    return losses.index(min(losses))


@cache
def read_examples(path: str) -> list[tuple[str, list[str], int]]:
    """Read the context, the endings and the label of each of HellaSwag's examples."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        found = [(row["ctx"], row["endings"], int(row["label"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path}: {error!r}; lines of ctx, endings and label expected") from None
    if not found:
        raise SystemExit(f"{path}: no examples; lines of ctx, endings and label expected")
    return found


@torch.no_grad()
def hellaswag(model: nn.Module, config, encoding, autocast, rank: int, world: int) -> float:
    """Return the share of examples whose true ending is the likeliest."""
    examples, encode = read_examples(config.hellaswag), encoding.encode_ordinary
    right = torch.zeros((), device=model.lm_head.weight.device)
    for context, texts, label in examples[rank::world]:
        endings = [encode(" " + ending) for ending in texts]
        with autocast:
            right += most_likely(model, encode(context), endings) == label
    return sum_over_processes(right).item() / len(examples)


def gpt2_encoding() -> tiktoken.Encoding:
    """Load GPT-2's tokenizer, without a download where the course's data folder is."""
    if not Path("data/gpt2.tiktoken").exists():
        try:
            return tiktoken.get_encoding("gpt2")
        except OSError as error:
            problem = f"GPT-2's tokenizer can't be downloaded ({type(error).__name__})"
            raise SystemExit(f"{problem}; copy the course's data/gpt2.tiktoken here") from None
    ranks = load_tiktoken_bpe("data/gpt2.tiktoken")
    rules = {"pat_str": r50k_pat_str, "special_tokens": {"<|endoftext|>": 50256}}
    return tiktoken.Encoding("gpt2", mergeable_ranks=ranks, **rules)


def ready(config: Config) -> tuple[Tokens, Tokens]:
    """Open the data, and stop a run now that couldn't end."""
    out = Path(config.out)
    if (out / "log.jsonl").exists() or (out / "model.safetensors").exists():
        raise SystemExit(f"{out}: holds another run; choose a new folder with --out")
    train_tokens = Tokens(config.train, config.vocab_size)
    val_tokens = Tokens(config.val, config.vocab_size)
    for path, n in ((config.train, len(train_tokens)), (config.val, len(val_tokens))):
        if n <= config.block_size:
            raise SystemExit(f"{path}: {n} tokens, but a window takes {config.block_size + 1}")
    if config.hellaswag:
        read_examples(config.hellaswag)  # so that a bad file stops us now
    return train_tokens, val_tokens


@torch.no_grad()
def openai_layout(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights as OpenAI stores them, with linear layers as (in, out) and no padding."""
    weights = dict(model.named_parameters())
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"][: model.config.vocab_size]
    is_linear = {name: ".c_" in name and name.endswith("weight") for name in weights}
    return {n: (w.t() if is_linear[n] else w).contiguous() for n, w in weights.items()}


def build(config: Config, device: torch.device):
    """Return the model, its fast version, the autocast and the optimizer."""
    torch.manual_seed(config.seed)
    raw_model = GPT(config)
    if config.init_from:
        theirs, ours = {}, openai_layout(raw_model)
        for name, tensor in load_file(config.init_from).items():
            if not name.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight")):
                theirs["transformer." + name.removeprefix("transformer.")] = tensor
        fit = {n for n in ours if n in theirs and theirs[n][: len(ours[n])].shape == ours[n].shape}
        if wrong := sorted((theirs.keys() | ours.keys()) - fit):
            problem = f"{len(wrong)} tensors are missing, unknown or of another shape"
            raise SystemExit(f"{config.init_from}: {problem}, first {wrong[0]}")
        load_weights(raw_model, theirs)  # the rows of tables may be more than ours
    model, autocast = fast(raw_model.to(device), config)
    return raw_model, model, autocast, make_optimizer(raw_model, config)


def judge(model: nn.Module, tokens: Tokens, config, encoding, autocast, rank, world) -> dict:
    """Return the validation loss, HellaSwag's score and a sample, by name."""
    loss = sum_over_processes(evaluate(model, tokens, config, autocast, rank, world))
    row = {"val_loss": loss.item()}
    if config.hellaswag:
        row["hellaswag"] = hellaswag(model, config, encoding, autocast, rank, world)
    prompt = torch.tensor([encoding.encode("Hello, I'm a language model,")]).to(loss.device)
    return row | {"sample": encoding.decode(generate(model, prompt, 24)[0].tolist())}


def record(row: dict, model: nn.Module, out: Path) -> None:
    """Print a row, append it to the log, and save the weights that it judges."""
    print(json.dumps(row))
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "log.jsonl", "a") as log:
        log.write(json.dumps(row) + "\n")
    if "val_loss" in row:
        data = save(openai_layout(model), metadata={"format": "pt"})  # which transformers wants
        (out / "model.tmp").write_bytes(data)
        os.replace(out / "model.tmp", out / "model.safetensors")  # so it's never half a file


def train(config: Config) -> None:
    """Train GPT-2, and write weights and a line of numbers per step into `config.out`."""
    train_tokens, val_tokens = ready(config)
    rank, world, device = start()
    encoding = gpt2_encoding()
    raw_model, model, autocast, optimizer = build(config, device)
    count = config.batch_tokens // config.block_size // config.micro_batch_size
    if count % world or count * config.micro_batch_size * config.block_size != config.batch_tokens:
        raise SystemExit("batch_tokens must be a multiple of micro-batch x block_size x processes")
    for step in range(config.max_steps):
        begun = time.perf_counter()
        pieces = micro_batches(train_tokens, step, config, rank, world)
        loss = sum_over_processes(backward(model, pieces, count, autocast))
        sum_gradients(raw_model)
        rate = learning_rate(step, config)
        norm = update(raw_model, optimizer, rate, config.grad_clip or math.inf)
        row = {"step": step, "loss": loss.item(), "lr": rate, "grad_norm": norm.item()}
        row["tokens_per_second"] = int(config.batch_tokens / (time.perf_counter() - begun))
        is_last = step + 1 == config.max_steps
        if is_last or (config.eval_every and (step + 1) % config.eval_every == 0):
            row |= judge(raw_model, val_tokens, config, encoding, autocast, rank, world)
        if rank == 0:
            record(row, raw_model, Path(config.out))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    train(tyro.cli(Config))
