"""Makes a bare `pytest --nbval notebooks/` right; `tools/nbval.py` says how."""

import cs336_lib  # noqa: F401 -- before torch, also for the kernels: it sets how threads wait

pytest_plugins = ["tools.nbval"]
