"""Refuse torch in answers that should do without it."""

from torch.overrides import TorchFunctionMode

from cs336_course.checks.report import DiagnosisError


class WithoutTorch(TorchFunctionMode):
    """Fail the check if a torch function is called within this block."""

    def __torch_function__(self, *_: object) -> None:
        """Refuse the call."""
        raise DiagnosisError("your code uses torch, but the task asks you to do without it.")
