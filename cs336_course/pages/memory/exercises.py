"""Exercise of the side trip on memory: make a step fit at least cost."""

from collections.abc import Iterator

from cs336_course.engine import Case, Exercise

NOTEBOOK = "side_trips/memory"


def rooms() -> Iterator[Case]:
    """Yield the room, the layers, and the sizes and prices of a model's parts."""
    for what, *sizes in (
        ("", 24.0, 32, 1.14, 0.067, 12.6, 2.4),
        ("much room", 60.0, 32, 1.14, 0.067, 12.6, 2.4),
        ("an expensive head", 24.0, 32, 1.14, 0.067, 12.6, 30.5),
        ("room for nothing", 1.0, 32, 1.14, 0.067, 12.6, 2.4),
        ("every block and chunks", 5.4, 32, 1.14, 0.067, 12.6, 2.4),
        ("blocks larger than the spike", 18.0, 4, 8.0, 0.5, 1.6, 0.3),
        ("no room for a whole block", 9.5, 4, 8.0, 0.5, 1.6, 0.3),
        ("a spike that hardly matters", 40.0, 32, 1.14, 0.067, 4.0, 9.5),
        ("room to the last byte", 8.5, 4, 2.0, 0.5, 2.0, 1.5),
    ):
        names = ("room", "layers", "block", "kept", "spike", "head")
        yield Case(what, **dict(zip(names, sizes, strict=True)))


AT_LOSS = "(layers - k) * block + k * kept + (spike / 4 if chunked else spike)"

make_it_fit = Exercise(
    NOTEBOOK,
    "make_it_fit",
    rooms,
    smaller="Take 1 layer of 3 GB with an input of 1, and a spike of 2. How much is alive at the "
    "loss and at the block, with a checkpoint and without?",
    wrong={
        "the spike and the recomputed block are never alive together; take the larger moment, not "
        "the sum.": [
            ("max(at_loss, at_block)", "at_loss + at_block"),
            ("max(at_loss, at_block)", "at_loss + block"),
        ],
        "a recomputed block is whole again; that moment must fit, too.": (
            "max(at_loss, at_block)",
            "at_loss",
        ),
        "when a checkpointed block is recomputed, the later blocks are gone.": (
            "at_block = k * kept + block",
            "at_block = (layers - k) * block + k * kept + block",
        ),
        "a checkpointed block still keeps its input.": ("+ k * kept + (", "+ ("),
        "the loss's spike is missing.": (AT_LOSS, "(layers - k) * block + k * kept"),
        "chunks leave a quarter of the spike.": ("spike / 4 if chunked", "0 if chunked"),
        "chunks cost `head` forward passes of a block; compare the whole price.": (
            "k + head * chunked, k",
            "k, k",
        ),
        "blocks may stay whole; you needn't checkpoint all or none.": (
            "range(layers + 1)",
            "(0, layers)",
        ),
        "all blocks may be checkpointed; k runs from 0 to layers.": (
            "range(layers + 1)",
            "range(layers)",
        ),
        "what exactly fills the room fits.": ("<= room", "< room"),
        "this choice fits, but a cheaper one does, too.": ("min(fitting)", "max(fitting)"),
    },
)
