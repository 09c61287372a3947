"""Other answers to the exercises of the bug hunt."""

from cs336_course.shared.named_letters import swapped

ONLY_LARGEST = """
def reads_everything(module):
    script = module.Script(torch.arange(120_000), 1, 0)
    largest = 0
    for script.batches in range(500):
        largest = max(largest, script.batch()[1].max().item())
    return 70_000 < largest < 100_000
"""
SAME_BATCH = """
def reads_everything(module):
    script = module.Script(torch.arange(120_000), 1, 0)
    seen = torch.cat([script.batch()[1].flatten() for _ in range(500)])
    return set((seen // 10_000).tolist()) == set(range(10))
"""
SMALLEST_AND_LARGEST = """
def reads_everything(module):
    script = module.Script(torch.arange(40_000), 1, 7)
    seen = []
    for script.batches in range(300):
        seen += script.batch()[0].flatten().tolist()
    return min(seen) < 1000 and 19_000 < max(seen) < 20_000
"""

RIGHT = {
    "bug_hunt": [('"loss_not_divided"', '" LOSS_not_divided"')],
    "ninth_test": [SMALLEST_AND_LARGEST],
}
REFUSED = {
    "bug_hunt": [
        swapped("replayed_data", "no_zero_grad"),
        ('"dropout_in_evaluation"', '"weights_too_large"'),
    ],
    "ninth_test": [
        "def reads_everything(module): return True",
        "def reads_everything(module): return False",
        ONLY_LARGEST,
        SAME_BATCH,
    ],
}
