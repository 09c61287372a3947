"""Set up the server of a student on a JupyterHub (docs/jupyterhub.md)."""

import os
import sys
from pathlib import Path
from typing import Any

from cs336_course.learner import lab, study

IDLE_SECONDS = 3600  # after which a kernel without a browser ends and frees its memory
DRIVER = f"'{sys.executable}' -m {__name__} %O %A %B"


def configure(c: Any) -> None:
    """Set the options of the server, and the merge driver of notebooks for its git commands.

    Call this in `jupyter_server_config.py`. `.gitattributes` names the driver.

    Args:
        c: Configuration object of the file.
    """
    c.LabApp.app_settings_dir = str(lab.SETTINGS)
    c.MappingKernelManager.cull_idle_timeout = IDLE_SECONDS
    os.environ["GIT_CONFIG_COUNT"] = "1"
    os.environ["GIT_CONFIG_KEY_0"] = "merge.notebook.driver"
    os.environ["GIT_CONFIG_VALUE_0"] = DRIVER


def merge(base: Path, mine: Path, course: Path) -> None:
    """Replace a student's notebook by the course's newer one if no cell has been edited.

    Merging their lines can leave a file that Jupyter can't open.

    Args:
        base: The notebook from which both were made.
        mine: The student's notebook, which is replaced or stays as it is.
        course: The newer notebook.
    """
    if not study.is_touched(mine, study.describe(base)):
        mine.write_bytes(course.read_bytes())


if __name__ == "__main__":
    merge(*map(Path, sys.argv[1:]))
