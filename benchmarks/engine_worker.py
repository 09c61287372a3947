"""Sample with one engine in a process of its own, as `benchmarks.engines` asks for it.

    python engine_worker.py ENGINE WEIGHTS MODEL THREADS

MODEL is a folder in Hugging Face's layout. Converted models are stored beside it. Each line of the
standard input is a JSON list of a prompt's token ids and the number of new tokens. Each answer is a
line with the seconds and the new tokens. The engine's own environment runs this file, so it imports
only what that environment has.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Sampler = Callable[[list[int], int], list[int]]
CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def ours(model: Path, weights: str, threads: int) -> Sampler:
    """Load the model as `cs336 sample --weights` does."""
    from cs336_lib import hugging_face  # before torch, because it decides how torch's threads wait
    from cs336_lib.sampling import WEIGHTS, generate, store_weights

    # isort: split
    import torch

    torch.set_num_threads(threads)
    gpt = hugging_face.load(model).eval()
    store_weights(gpt, WEIGHTS[weights])

    def sample(prompt: list[int], count: int) -> list[int]:
        text = generate(gpt, torch.tensor([prompt]), count, temperature=0.0)
        return text[0, len(prompt) :].tolist()

    return sample


def transformers(model: Path, weights: str, threads: int) -> Sampler:
    """Load transformers' GPT2LMHeadModel."""
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[weights]
    gpt: Any = GPT2LMHeadModel.from_pretrained(model, dtype=dtype).eval()
    gpt.generation_config.eos_token_id = None
    settings = {"do_sample": False, "pad_token_id": 0}

    def sample(prompt: list[int], count: int) -> list[int]:
        idx = torch.tensor([prompt])
        seen = torch.ones_like(idx)
        text = gpt.generate(idx, attention_mask=seen, max_new_tokens=count, **settings)
        return text[0, len(prompt) :].tolist()

    return sample


def ctranslate2(model: Path, weights: str, threads: int) -> Sampler:
    """Convert the model for CTranslate2 and load it."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    kind = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}[weights]
    converted = model.parent / f"ctranslate2-{weights}"
    if not converted.exists():
        TransformersConverter(str(model)).convert(str(converted), quantization=kind)
    generator = ctranslate2.Generator(str(converted), compute_type=kind, intra_threads=threads)
    vocabulary = json.loads((model / "vocab.json").read_text(encoding="utf-8"))
    names = {token: name for name, token in vocabulary.items()}

    def sample(prompt: list[int], count: int) -> list[int]:
        (result,) = generator.generate_batch(
            [[names[token] for token in prompt]],
            max_length=count,
            min_length=count,
            include_prompt_in_result=False,
        )
        return result.sequences_ids[0]

    return sample


def openvino(model: Path, weights: str, threads: int) -> Sampler:
    """Convert the model for OpenVINO GenAI and load it.

    Without a hint, OpenVINO computes in bf16 on a CPU with native bf16. fp32 weights get the hint.
    """
    import numpy as np
    from openvino import Tensor
    from openvino_genai import GenerationConfig, LLMPipeline

    converted = model.parent / f"openvino-{weights}"
    if not converted.exists():
        from optimum.exporters.openvino import main_export
        from optimum.intel import OVConfig

        size = {"quantization_config": {"bits": 8}} if weights == "int8" else {"dtype": weights}
        task = "text-generation-with-past"
        main_export(str(model), converted, task=task, ov_config=OVConfig(**size))
    hint = {"INFERENCE_PRECISION_HINT": "f32"} if weights == "fp32" else {}
    pipeline = LLMPipeline(converted, "CPU", INFERENCE_NUM_THREADS=threads, **hint)

    def sample(prompt: list[int], count: int) -> list[int]:
        settings = GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        return pipeline.generate(Tensor(np.array([prompt])), settings).tokens[0]

    return sample


def write_gguf(model: Path, converted: Path, weights: str) -> None:
    """Convert GPT-2 for llama.cpp, without a tokenizer. int8 is Q8_0, which has blocks of 32."""
    import gguf
    from safetensors.numpy import load_file

    shape = json.loads((model / "config.json").read_text(encoding="utf-8"))
    types = gguf.GGMLQuantizationType
    kind = {"fp32": types.F32, "fp16": types.F16, "bf16": types.BF16, "int8": types.Q8_0}[weights]
    writer = gguf.GGUFWriter(converted, "gpt2")
    writer.add_context_length(shape["n_positions"])
    writer.add_embedding_length(shape["n_embd"])
    writer.add_feed_forward_length(4 * shape["n_embd"])
    writer.add_block_count(shape["n_layer"])
    writer.add_head_count(shape["n_head"])
    writer.add_layer_norm_eps(shape["layer_norm_epsilon"])
    writer.add_vocab_size(shape["vocab_size"])
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, shape["n_layer"])
    for name, tensor in load_file(model / "model.safetensors").items():
        stored = tensor.T.copy() if name.endswith(CONV1D) else tensor
        is_matrix = tensor.ndim == 2 and "wpe" not in name
        own = kind if is_matrix else types.F32
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(theirs, gguf.quants.quantize(stored, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp(model: Path, weights: str, threads: int) -> Sampler:
    """Convert the model for llama.cpp and load it."""
    from llama_cpp import Llama

    converted = model.parent / f"llama_cpp-{weights}.gguf"
    if not converted.exists():
        write_gguf(model, converted, weights)
    counts = {"n_threads": threads, "n_threads_batch": threads}
    llama = Llama(str(converted), n_ctx=1024, verbose=False, **counts)

    def sample(prompt: list[int], count: int) -> list[int]:
        llama.reset()
        tokens = llama.generate(prompt, top_k=1, temp=0.0, repeat_penalty=1.0, reset=False)
        return list(itertools.islice(tokens, count))

    return sample


def main(engine: str, weights: str, model: str, threads: str) -> None:
    """Load a model and answer each line of the standard input."""
    answers = os.fdopen(os.dup(1), "w")  # engines print to the standard output, too
    os.dup2(2, 1)
    sample: Sampler = globals()[engine](Path(model), weights, int(threads))
    for line in sys.stdin:
        begin = time.perf_counter()
        tokens = sample(*json.loads(line))
        print(json.dumps([time.perf_counter() - begin, list(tokens)]), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
