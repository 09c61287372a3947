"""The log of a full run that others made, and the journeys of buckets."""

from collections.abc import Sequence

# csabapalfi's run of build-nanogpt (log/train-2x-h100-epoch-1.log): 17 of its 78 evaluations, each
# with the step, the validation loss and the right answers of 10,042
LOG = [
    (0, 10.9512, 2492),
    (250, 6.1760, 2449),
    (500, 5.2980, 2419),
    (1000, 4.1544, 2585),
    (1500, 3.8140, 2593),
    (2000, 3.6690, 2604),
    (3000, 3.5023, 2727),
    (5000, 3.3528, 2770),
    (6500, 3.2840, 2874),
    (7500, 3.2532, 2918),
    (10000, 3.1896, 2951),
    (10750, 3.1755, 2959),
    (11750, 3.1558, 2983),
    (12500, 3.1410, 2977),
    (15000, 3.1072, 3008),
    (17500, 3.0864, 3045),
    (19072, 3.0717, 3087),
]


def journeys(
    numbers: Sequence[int], size: int, compute: float, network: float
) -> list[tuple[float, float]]:
    """Return when each bucket of a step leaves and arrives.

    Args:
        numbers: Numbers in each gradient, as backward completes them. The last one is the tied
            matrix's, of which the output layer's share is computed first.
        size: Numbers in a full bucket.
        compute: Time for the forward and the backward pass, which takes two thirds of it.
        network: Time for the sums of all gradients.
    """
    total, done, waiting, arrived, found = sum(numbers), numbers[-1], 0, 0.0, []
    for place, count in enumerate(numbers, 1):
        done, waiting = min(done + count, total), waiting + count
        if waiting >= size or place == len(numbers):
            leaves = max(arrived, compute * (1 + 2 * done / total) / 3)
            arrived = leaves + network * waiting / total
            found.append((leaves, arrived))
            waiting = 0
    return found
