"""Block formats against torch and by hand, and the 4-bit matrix that ships."""

import hashlib
import json
import sys
import types

import numpy as np
import pytest
import torch

from cs336_course.pages.low_bits import story as four_bits
from cs336_course.shared import number_formats
from cs336_lib.data.corpus import DATA
from cs336_lib.training import checkpoint


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_fp4_is_rounded_as_by_the_format():
    x = 3 * normal(1000)
    fp4 = number_formats.E2M1
    assert four_bits.e2m1(x).tolist() == [fp4.decode(fp4.encode(value)) for value in x.tolist()]
    torch.manual_seed(0)
    drawn = four_bits.e2m1(torch.full((10_000,), 2.25), stochastic=True)
    assert sorted(set(drawn.tolist())) == [2.0, 3.0]
    assert drawn.mean().item() == pytest.approx(2.25, abs=0.02)


def test_a_hadamard_matrix_is_orthogonal_and_spreads_an_outlier():
    matrix = four_bits.random_hadamard(16)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(16))
    row = torch.zeros(1, 16)
    row[0, 3] = 4.0
    assert four_bits.spread(row).abs().tolist() == [[1.0] * 16]


def test_a_quantized_layer_without_quantization_is_a_linear_layer():
    x, weight = normal(2, 32, 64).requires_grad_(), normal(16, 64).requires_grad_()
    results = []
    for recipe in (four_bits.Recipe(), four_bits.Recipe(hadamard=True), None):
        x.grad = weight.grad = None
        if recipe:
            y = four_bits.QuantizedMatmul.apply(x, weight, recipe)
        else:
            y = torch.nn.functional.linear(x, weight)
        y.square().sum().backward()
        results.append((y.detach(), x.grad, weight.grad))
    for got in results[:2]:
        torch.testing.assert_close(got, results[2], rtol=1e-3, atol=1e-2)


def test_the_shipped_matrix_is_what_its_description_and_the_readme_say():
    about, blocks = four_bits.shipped_blocks()
    assert hashlib.sha256(blocks.tobytes()).hexdigest() == about["sha256"]
    assert f"{blocks.nbytes:,} | `{about['sha256']}`" in (DATA / "README.md").read_text()
    assert blocks.size * 8 / np.prod(about["shape"]) == 5
    assert "Apache License" in (four_bits.SHIPPED / "LICENSE").read_text()
    assert about["license"] == "apache-2.0"


def test_q4_1_is_encoded_as_in_the_shipped_file():
    _, blocks = four_bits.shipped_blocks()
    assert np.array_equal(four_bits.q4_1_encode(four_bits.q4_1_decode(blocks)), blocks)


def test_the_script_copies_the_tensor_from_a_gguf_file(tmp_path, monkeypatch):
    data = np.arange(40, dtype=np.uint8).reshape(2, 20)
    kind = types.SimpleNamespace(name="Q4_1")
    tensor = types.SimpleNamespace(
        name="blk.0.attn_v.weight",
        tensor_type=kind,
        shape=(32, 2),
        data=data,
        n_elements=64,
        n_bytes=40,
    )
    licence = types.SimpleNamespace(contents=lambda: "apache-2.0")
    reader = types.SimpleNamespace(tensors=[tensor], fields={"general.license": licence})
    gguf = types.SimpleNamespace(GGUFReader=lambda path: reader)
    monkeypatch.setitem(sys.modules, "gguf", gguf)
    monkeypatch.syspath_prepend(str(DATA))
    import make_smollm2_blocks

    (tmp_path / "model.gguf").write_bytes(b"gguf")
    make_smollm2_blocks.extract(tmp_path / "model.gguf", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about["shape"] == [2, 32]
    assert (tmp_path / "out" / "blk.0.attn_v.weight.q4_1").read_bytes() == data.tobytes()


def test_the_blocks_are_rounded_for_a_while_only():
    model, _ = checkpoint.load_shipped()
    weight = model.transformer.h[0].attn.c_attn.weight
    before = weight.detach().clone()
    with four_bits.rounded_blocks(model, four_bits.integers(2, 32)):
        assert not torch.equal(weight, before)
    assert torch.equal(weight, before)
    with pytest.raises(KeyboardInterrupt), four_bits.rounded_blocks(model, four_bits.q4_1):
        raise KeyboardInterrupt
    assert torch.equal(weight, before)
