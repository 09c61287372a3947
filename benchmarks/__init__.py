"""Side-by-side measurements against what others use; `python -m benchmarks.NAME` runs one."""

# Turns after which an idle OpenMP thread sleeps. This is libgomp's default, so other programs run
# as their users know them. cs336_lib lets its threads sleep sooner.
SPINS = 300_000
