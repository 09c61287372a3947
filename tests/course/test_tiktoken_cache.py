"""GPT-2's tokenizer comes from the data that ship, as tiktoken's own files."""

import os
import subprocess
import sys

from cs336_course.shared import tiktoken_cache

PROGRAM = """
import urllib3, tiktoken
urllib3.PoolManager.urlopen = None  # no network
print(tiktoken.get_encoding("gpt2").encode("hello world"))
"""


def test_tiktoken_finds_its_files(tmp_path):
    settings = {"TIKTOKEN_CACHE_DIR": str(tiktoken_cache.fill(tmp_path / "cache"))}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[31373, 995]\n", done.stderr
