"""Compressors of Python's library, as a yardstick for language models."""

import bz2
import gzip
import lzma


def bits_per_byte(data: bytes) -> dict[str, float]:
    """Return how many bits each compressor needs for a byte of data, at its highest level."""
    sizes = {
        "gzip": len(gzip.compress(data, compresslevel=9)),
        "bz2": len(bz2.compress(data, compresslevel=9)),
        "xz": len(lzma.compress(data, preset=9)),
    }
    return {name: 8 * size / len(data) for name, size in sizes.items()}
