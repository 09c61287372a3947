"""Open your copy of the notebooks in JupyterLab (`cs336 lab`, `make lab`)."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from cs336_course.learner import study
from cs336_lib.config import UserError

# The page renders every cell, so that the browser's search finds those that are out of view, and
# JupyterLab doesn't ask about news.
SETTINGS = Path(__file__).with_name("lab_settings")
STYLE = Path(__file__).parents[1] / "drawing" / "custom"  # JupyterLab asks for custom.css
AS_ROOT = """\
As root, JupyterLab starts only if you say so, because whoever reaches its page can change the whole
machine. On your own computer, use your own account. In a container or on a rented machine, run
`make lab ARGS=--allow-root` or `cs336 lab --allow-root`."""


def start(
    port: int = 8888, browser: bool = True, mine: Path = study.MINE, allow_root: bool = False
) -> int:
    """Update the folder `mine` in the current one, open it, and return JupyterLab's exit code.

    The notebooks come from the clone in the current folder, or else from the package.

    Raises:
        UserError: If JupyterLab isn't installed, or the folder can't be written.
    """
    if find_spec("jupyterlab") is None:
        raise UserError("cs336 lab needs JupyterLab; pip install 'cs336-lib[lab]'")
    study.update(study.find_course(), mine)
    return subprocess.call(
        [
            *(sys.executable, "-m", "cs336_course.learner.lab", f"--port={port}"),
            *([] if browser else ["--no-browser"]),
            *(["--allow-root"] if allow_root else []),
            "--ServerApp.root_dir=.",
            f"--LabApp.default_url=/lab/tree/{mine}/00_start_here.ipynb",
            f"--LabApp.app_settings_dir={SETTINGS}",
        ]
    )


def main() -> None:
    """Start JupyterLab with the options of the command line, in half the time of `jupyter lab`.

    jsonschema imports a parser of internationalized addresses, which takes more than a second. It
    does without the parser if the import fails, and no schema of Jupyter has such addresses.
    Source: https://github.com/jupyter-server/jupyter_server/issues/1559
    """
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    from jupyter_server.serverapp import ServerApp
    from jupyterlab.labapp import main as serve

    # The stored covers of notebooks that haven't run follow a dark theme. There is no option for
    # the folder.
    ServerApp.static_custom_path = [str(STYLE)]
    sys.argv.insert(1, "--LabApp.custom_css=True")
    try:
        serve()
    except SystemExit as end:
        if end.code == 1 and is_root() and "--allow-root" not in sys.argv:
            print(AS_ROOT, file=sys.stderr)
        raise


def is_root() -> bool:
    """Return whether this process is root's, which Windows doesn't have."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


if __name__ == "__main__":
    main()
