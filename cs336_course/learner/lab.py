"""Open the learner's copy of the notebooks in JupyterLab (`cs336 lab`, `make lab`)."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from cs336_course.learner import study
from cs336_lib.config import UserError

# The page renders every cell, so that the browser's search finds those that are out of view, and
# JupyterLab doesn't ask about news.
SETTINGS = Path(__file__).with_name("lab_settings")


def start(port: int = 8888, browser: bool = True) -> int:
    """Update `my_notebooks` in the current folder, open it, and return JupyterLab's exit code.

    The notebooks come from the clone in the current folder, or else from the package.

    Raises:
        UserError: If JupyterLab isn't installed, or the folder can't be written.
    """
    if find_spec("jupyterlab") is None:
        raise UserError("cs336 lab needs JupyterLab; pip install 'cs336-lib[lab]'")
    study.update_and_report(study.find_course())
    return subprocess.call(
        [
            *(sys.executable, "-m", "cs336_course.learner.lab", f"--port={port}"),
            *([] if browser else ["--no-browser"]),
            "--ServerApp.root_dir=.",
            f"--LabApp.default_url=/lab/tree/{study.MINE}/00_start_here.ipynb",
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
    from jupyterlab.labapp import main as serve

    serve()


if __name__ == "__main__":
    main()
