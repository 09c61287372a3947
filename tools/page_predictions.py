"""Write a prediction as HTML that works on a page or on a slide without a kernel.

On a page, `docs/_static/predictions.js` folds the answer below it until the reader has chosen. A
slide shows only the options, because the answer is on the next one.
"""

import ast
import html
from string import ascii_uppercase

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output


def options(source: str) -> list[str]:
    """Return the options of the call of `predict` in a cell."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    call = next(call for call in calls if getattr(call.func, "id", "") == "predict")
    return [ast.literal_eval(argument) for argument in call.args[1:]]


def card(cell: NotebookNode) -> str:
    """Return the HTML of a prediction's cell."""
    about = cell.metadata["cs336"]
    why = about.get("why", {})
    buttons = "".join(
        f'<button type="button" class="cs336-option" data-option="{html.escape(option)}" '
        f'data-why="{html.escape(why.get(option, ""))}">{letter} &nbsp; {html.escape(option)}'
        '<span class="cs336-mark"></span></button>'
        for letter, option in zip(ascii_uppercase, options(cell.source), strict=False)
    )
    return (
        '<div class="cs336-explorer cs336-prediction cs336-guess" role="group" '
        f'aria-label="Your prediction" data-answer="{html.escape(about["answer"])}">'
        '<strong class="cs336-title">Your prediction</strong>'
        '<p class="cs336-said" role="status">Choose, and the answer unfolds below.</p>'
        f'<div class="cs336-options">{buttons}</div></div>'
    )


def with_predictions(notebook: NotebookNode) -> NotebookNode:
    """Replace the pictures of predictions by cards, and hide their code."""
    for cell in notebook.cells:
        if "prediction" in cell.metadata.get("cs336", {}):
            cell.outputs = [new_output("display_data", {"text/html": card(cell)})]
            cell.metadata.setdefault("tags", []).append("remove-input")
    return notebook


def with_questions(notebook: NotebookNode) -> NotebookNode:
    """Replace predictions by a list of their options, without code or answer."""
    for index, cell in enumerate(notebook.cells):
        if "prediction" in cell.metadata.get("cs336", {}):
            items = "".join(f"<li>{html.escape(option)}</li>" for option in options(cell.source))
            metadata = {"slideshow": cell.metadata.slideshow}
            notebook.cells[index] = new_markdown_cell(
                f'<ol class="options">{items}</ol>', id=cell.id, metadata=metadata
            )
    return notebook
