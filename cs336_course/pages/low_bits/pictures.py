"""The cover of the page low_bits: texts in few bits."""

from textwrap import wrap

from cs336_course.drawing.dtypes import bare
from cs336_course.drawing.style import BLACK, RED, figure, ink, label, show_cover
from cs336_course.pages.low_bits import story as four_bits
from cs336_lib.sampling import stream_text
from cs336_lib.training import checkpoint


def cover() -> None:
    """Print what a model writes when its weights are stored in 32, 4 and 2 bits."""
    _, axes = figure(10, 3.2)
    model, tokenizer = checkpoint.load_shipped()
    formats = {32: four_bits.keep, 4: four_bits.integers(4, 32), 2: four_bits.integers(2, 32)}
    for column, (bits, quantize) in enumerate(formats.items()):
        with four_bits.rounded_blocks(model, quantize):
            pieces = stream_text(model, tokenizer, "JULIET:\n", 54, temperature=0.7, seed=0)
            written = "".join(pieces)
        colour = RED if bits == 2 else BLACK
        axes.text(column, 0.98, f"{bits} bits", va="top", fontsize=27, fontweight="bold")
        lines = [part for line in written.split("\n") for part in wrap(line, 19) or [""]]
        text = "JULIET:\n" + "\n".join(lines)
        spot = {"va": "top", "family": "monospace", "linespacing": 1.3}
        axes.text(column, 0.74, text, fontsize=18, color=ink(colour), **spot)
    axes.set(xlim=(-0.02, 3), ylim=(0, 1))
    bare(axes)
    label(axes, "One model, with its blocks' weights in fewer and fewer bits", "", "")
    show_cover()
