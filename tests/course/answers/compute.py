"""Other answers to the exercises of the room compute."""

from cs336_course.pages.compute.exercises import BY_BYTES, LOST


def by_trying(weights, cache, seconds, peak, bandwidth):
    """Add a text until a step is too slow."""
    texts = 0
    while (
        2 * weights * (texts + 1) <= seconds * peak
        and 2 * weights + cache * (texts + 1) <= seconds * bandwidth
    ):
        texts += 1
    return texts


RIGHT = {
    "texts_at_once": [by_trying, ("math.floor(", "int(")],
    "by_loss": [("sorted(kernels, key=lost, reverse=True)", "sorted(kernels, key=lost)[::-1]")],
}
REFUSED = {
    "texts_at_once": [(BY_BYTES, "seconds * peak / cache"), ("max(0, ", "max(1, ")],
    "by_loss": [(LOST, f"({LOST}) ** 2"), ("kernel.name", "kernel.name.upper()")],
}
