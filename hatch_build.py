"""Prepare the notebooks and the README for the package index.

The wheel and the sdist have the notebooks without outputs. The pictures would make the files half
as large again, and learners see them when they run the cells. Links to files that the package and
the index don't have lead to the repository.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

TARGETS = {"wheel": "cs336_lib/shipped/notebooks", "sdist": "notebooks"}


class NotebooksHook(BuildHookInterface):
    """Hook that hatchling calls before and after it writes a file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the notebooks without outputs to a temporary folder, and include it."""
        if version == "editable":  # uses the notebooks of the clone
            return
        self.folder = Path(tempfile.mkdtemp(prefix="notebooks_"))
        source, repository = Path(self.root) / "notebooks", self.metadata.core.urls["Repository"]
        shutil.copyfile(source / "rise.css", self.folder / "rise.css")
        for path in source.rglob("*.ipynb"):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell |= {"outputs": [], "execution_count": None}
            text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
            text = re.sub(r"\]\((\.\./)+docs/", f"]({repository}/blob/main/docs/", text)
            target = self.folder / path.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            target.write_text(f"{text}\n", encoding="utf-8")
        build_data["force_include"][str(self.folder)] = TARGETS[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if version != "editable":
            shutil.rmtree(self.folder)


class ReadmeHook(MetadataHookInterface):
    """Hook that hatchling calls for the fields that pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README with links to the repository."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"]
        text = re.sub(r"(!\[[^]]*\]\()(?!http)", rf"\1{repository}/raw/main/", text)
        text = re.sub(r"(?<!!)(\[[^]]*\]\()(?!http|#)", rf"\1{repository}/blob/main/", text)
        text = text.replace("](#", f"]({repository}#")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
