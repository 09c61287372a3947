"""Fill tiktoken's cache from the tokenizer that ships, so that GPT-2's needs no download."""

import hashlib
import inspect
import re
from pathlib import Path

from tiktoken_ext import openai_public

from cs336_lib import hugging_face


def fill(folder: Path) -> Path:
    """Write the two files of GPT-2's tokenizer where tiktoken looks for them.

    tiktoken names a cached file by the SHA-1 of its address, and compares its checksum.

    Args:
        folder: Folder for the environment variable TIKTOKEN_CACHE_DIR.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = hugging_face.vocabulary_files(hugging_face.gpt2_steps()["model"])
    contents = {"encoder.json": files["vocab.json"], "vocab.bpe": files["merges.txt"]}
    for address in re.findall(r'"(https://[^"]*)"', inspect.getsource(openai_public.gpt2)):
        name = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
        content = contents[address.rpartition("/")[2]]
        (folder / name).write_text(content, encoding="utf-8", newline="\n")
    return folder
