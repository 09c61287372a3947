"""Other answers to the exercise of the errata."""

import torch


def with_two_seeds(train, settings, others):
    """Compare the runs of each seed among themselves."""

    def losses(**changed):
        return [torch.manual_seed(seed) and train(**settings | changed) for seed in (1, 2)]

    usual = losses()
    return [name for name in settings if losses(**{name: others[name]}) == usual]


RIGHT = {
    "ignored": [
        with_two_seeds,
    ],
}
REFUSED = {
    "ignored": [
        lambda train, settings, others: [],
        ("for name in settings if", "for name in others if"),
        lambda train, settings, others: list(settings)[:2],
        lambda train, settings, others: settings.update(others),
    ],
}
