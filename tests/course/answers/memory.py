"""Other answers to the exercises of the room memory."""

from itertools import product


def sorted_by_price(room, layers, block, kept, spike, head):
    """Try all choices from the cheapest to the dearest."""
    choices = product(range(layers + 1), (False, True))
    for k, chunked in sorted(choices, key=lambda choice: choice[0] + head * choice[1]):
        loss = spike / 4 if chunked else spike
        if max((layers - k) * block + k * kept + loss, k * kept + block) <= room:
            return [k, chunked]
    return None


RIGHT = {"make_it_fit": [sorted_by_price, lambda *sizes: sorted_by_price(*sizes)]}
REFUSED = {
    "make_it_fit": [
        lambda *sizes: None,
        lambda room, layers, *rest: (layers, True),
        ("min(fitting)[1:]", "min(fitting)"),
        ("if fitting else None", "if fitting else (layers, True)"),
    ],
}
