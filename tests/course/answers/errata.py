"""Other answers to the exercise of the errata."""

import torch


def with_a_loop(train, settings, others):
    """Go through the settings one by one."""
    torch.manual_seed(7)
    usual = train(**settings)
    found = []
    for name, value in others.items():
        torch.manual_seed(7)
        if train(**{**settings, name: value}) == usual:
            found.append(name)
    return found


RIGHT = {
    "ignored": [
        with_a_loop,
        ("torch.manual_seed(0)", "torch.manual_seed(1)"),
        ("settings | changed", "{**settings, **changed}"),
    ],
}
REFUSED = {
    "ignored": [
        lambda train, settings, others: [],
        lambda train, settings, others: list(settings)[:2],
        lambda train, settings, others: settings.update(others),
    ],
}
