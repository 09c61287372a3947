"""Side-by-side measurements against what others use; `python -m benchmarks.NAME` runs one."""
