"""What annotated shapes check under an import hook."""

import subprocess
import sys

import pytest

ANNOTATED = '''
from jaxtyping import Float
from torch import Tensor


def flattened(x: Float[Tensor, "rows columns"]):
    """Annotate the flat result as if it had two axes."""
    y: Float[Tensor, "rows columns"] = x.flatten()
    return y
'''
UNDER_A_HOOK = """
import torch
from beartype.claw import beartype_package
from jaxtyping import install_import_hook
{install}
from annotated import flattened
for shape in ((2,), (2, 3)):
    try:
        print("accepted", tuple(flattened(torch.ones(shape)).shape))
    except Exception as error:
        print("refused", "variable" if 'variable "y"' in str(error) else "argument")
"""


@pytest.mark.parametrize(
    ("install", "of_a_matrix"),
    [
        ("install_import_hook('annotated', 'beartype.beartype')", "accepted (6,)"),
        ("beartype_package('annotated')", "refused variable"),
    ],
)
def test_only_the_import_hook_of_beartype_checks_annotated_variables(
    tmp_path, install, of_a_matrix
):
    (tmp_path / "annotated.py").write_text(ANNOTATED)
    code = UNDER_A_HOOK.format(install=install)  # its own process: beartype's hook would stay
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["refused argument", of_a_matrix]
