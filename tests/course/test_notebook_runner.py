"""`make notebooks`: outputs in one normal form, and a notebook that fails stays as it was."""

import base64
import io
import sys

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image

from tools import notebooks


def write(path, *sources: str):
    cells = [new_code_cell(source) for source in sources]
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Title"), *cells]), path)
    return path


def test_run_stores_outputs_in_normal_form(tmp_path):
    source = "import sys; print('kept'); print('50%', file=sys.stderr); 6 * 7"
    path = write(tmp_path / "a.ipynb", source, "x = 1")
    notebooks.run(path)
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    first, second = notebook.cells[1:]
    assert [first.execution_count, second.execution_count] == [1, 2]
    assert [output.output_type for output in first.outputs] == ["stream", "execute_result"]
    assert first.outputs[0].text == "kept\n"
    assert first.outputs[1].execution_count == 1
    assert "execution" not in first.metadata


def test_progress_is_displayed_but_not_stored():
    source = "from cs336_lib.io import Bar\nfor i in Bar(range(3), delay=0, leave=True): pass\ni"
    notebook = new_notebook(cells=[new_code_cell(source)])
    notebooks.NotebookClient(notebook, kernel_name="python3").execute()
    shown, result = notebook.cells[0].outputs
    assert "100%|██████████| 3/3" in shown.data["text/html"]  # and not on stderr
    assert notebooks.normalise(notebook).cells[0].outputs == [result]


def encoded(pixels: np.ndarray) -> str:
    """Return pixels as a PNG in base64."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_a_picture_is_stored_with_few_colours_unless_it_would_change():
    random = np.random.default_rng(0)
    figure = encoded(random.integers(0, 250, (50, 600, 1), dtype=np.uint8).repeat(3, 2))
    assert len(notebooks.small(figure)) < len(figure)
    assert notebooks.small(notebooks.small(figure)) == notebooks.small(figure)
    photograph = random.integers(0, 255, (50, 600, 3), dtype=np.uint8)
    assert notebooks.small(encoded(photograph)) == encoded(photograph)
    clear = np.dstack([photograph // 64 * 64, np.zeros((50, 600), np.uint8)])
    assert notebooks.small(encoded(clear)) == encoded(clear)


def test_a_failing_notebook_is_named_and_left_alone(tmp_path, monkeypatch, capsys):
    bad = write(tmp_path / "bad.ipynb", "print('before')", "1 / 0")
    good = write(tmp_path / "good.ipynb", "print('fine')")
    before = bad.read_bytes()
    monkeypatch.setattr(sys, "argv", ["notebooks", str(bad), str(good)])
    with pytest.raises(SystemExit) as ended:
        notebooks.main()
    assert ended.value.code == 1
    assert "bad.ipynb: left as it was" in capsys.readouterr().err
    assert bad.read_bytes() == before
    assert nbformat.read(good, as_version=4).cells[1].outputs


def test_a_notebook_without_its_model_is_named_and_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CS336_SMOLLM2", raising=False)
    monkeypatch.setenv("CS336_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "model_of_today.ipynb", "1 / 0")
    before = path.read_bytes()
    monkeypatch.setattr(sys, "argv", ["notebooks", str(path)])
    with pytest.raises(SystemExit) as ended:
        notebooks.main()
    assert ended.value.code == 0
    said = capsys.readouterr().err
    assert "model_of_today.ipynb needs SmolLM2: cs336 fetch smollm2\n" in said
    assert path.read_bytes() == before
