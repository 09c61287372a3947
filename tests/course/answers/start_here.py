"""Answers to the exercise of page 00."""


def by_sorting(parameters, tokens, hours, offers):
    """Sort the offers by their dollars per useful FLOP, and return the first in time."""
    for offer in sorted(offers, key=lambda o: o.price / (o.peak * o.mfu)):
        if 6 * parameters * tokens <= hours * 3600 * offer.gpus * offer.peak * offer.mfu:
            return offer.name
    return None


RIGHT = {
    "cheapest": [
        by_sorting,
        (" / 3600", " / 60 / 60"),
        ("needed * offer.gpus * offer.price", "offer.price / (offer.peak * offer.mfu)"),
    ]
}
REFUSED = {
    "cheapest": [
        lambda parameters, tokens, hours, offers: "8 B200" if hours < 48 else "8 H100",
        (" * offer.mfu", " * 0.41"),
        ("needed * offer.gpus * offer.price", "-offer.peak"),
        ("needed * offer.gpus", "-(-needed // 24) * offer.gpus"),
    ]
}
