"""Run notebooks, and store normalized outputs (`make notebooks`)."""

import argparse
import base64
import io
import sys
from pathlib import Path

import nbformat
import numpy as np
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from PIL import Image
from tqdm import tqdm

from cs336_course.fetch import lacks
from cs336_lib.io import TEMPORARY
from tools import pages

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
COLOURS, ERROR = 256, 0.5  # of a stored picture, and their mean error that isn't visible, of 255
OUTPUT_TIMEOUT = 600  # nbclient's default of 4 seconds loses outputs on a busy machine


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Remove differences between runs and machines from a notebook.

    This removes stderr, progress, timestamps, widget state and the patch version of the kernel, and
    stores pictures with few colours.
    Cells are numbered 1, 2, ..., because nbval rejects outputs without a number. JupyterLab opens
    the imports folded.
    """
    notebook.metadata = {
        "kernelspec": KERNEL,
        "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
    }
    number = 0
    for cell in notebook.cells:
        for key in ("execution", "collapsed", "jupyter", "trusted"):
            cell.metadata.pop(key, None)
        if {"imports", "given"} & set(cell.metadata.get("tags", [])):
            cell.metadata["jupyter"] = {"source_hidden": True}
        if cell.cell_type != "code":
            continue
        number += 1
        cell.execution_count = number
        cell.outputs = [o for o in cell.outputs if not passes(o)]
        for output in cell.outputs:
            output.pop("transient", None)
            if "execution_count" in output:
                output.execution_count = number
            if "data" in output:
                output.data.pop("application/vnd.jupyter.widget-view+json", None)
                if "image/png" in output.data:
                    output.data["image/png"] = small(output.data["image/png"])
    return notebook


def passes(output: NotebookNode) -> bool:
    """Return whether an output is only for the moment: stderr or progress."""
    shown = "".join(output.get("data", {}).get("text/html", ""))
    return output.get("name") == "stderr" or TEMPORARY in shown


def small(png: str) -> str:
    """Return a picture in base64 with at most `COLOURS` colours, less than half the bytes.

    A picture that has few colours already, or would change visibly, stays as it is.
    """
    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    if picture.mode == "P":
        return png
    few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    before, after = (np.asarray(each.convert("RGBA"), float) for each in (picture, few))
    if np.abs(after - before).mean() > ERROR:
        return png
    file = io.BytesIO()
    few.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def run(path: Path) -> None:
    """Execute one notebook in a new kernel, and save it in normalized form."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        startup_timeout=OUTPUT_TIMEOUT,
        iopub_timeout=OUTPUT_TIMEOUT,
        raise_on_iopub_timeout=True,
        kernel_name=KERNEL["name"],
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    nbformat.write(normalise(notebook), path)


def main() -> None:
    """Run the given notebooks. By default, run all, and write what follows from their table."""
    parser = argparse.ArgumentParser(description="Run notebooks and store their outputs.")
    parser.add_argument("paths", nargs="*", type=Path, help="default: all in notebooks/")
    named = parser.parse_args().paths
    paths = named or sorted(Path("notebooks").rglob("*.ipynb"))
    failed = False
    for path in tqdm(paths, unit="notebook"):
        if missing := lacks(path.name):
            print(missing, file=sys.stderr)
            continue
        try:
            run(path)
        except (CellExecutionError, DeadKernelError, TimeoutError) as error:
            failed = True
            print(f"{path}: left as it was, since a cell failed\n{error}", file=sys.stderr)
    if not named:
        pages.main()
    sys.exit(failed)


if __name__ == "__main__":
    main()
