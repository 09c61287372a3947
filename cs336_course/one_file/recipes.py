"""The file that `cs336 assemble` writes, with its notebooks, settings and sections."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cs336_course.learner import study
from cs336_lib.config import UserError

FILES = study.SHIPPED.parent  # the assembled file stands beside the notebooks


@dataclass(frozen=True)
class Recipe:
    """A file that is assembled.

    Attributes:
        file: Name of the file.
        notebooks: Keys of the notebooks that hold parts. A later one can define a part anew.
        outline: Sections of the file, and the names of the parts in each.
    """

    file: str
    notebooks: str
    outline: Mapping[str, str]

    @cached_property
    def header(self) -> str:
        """The file above its sections: docstring, imports and settings."""
        text = (FILES / self.file).read_text(encoding="utf-8")
        return text.partition("\n\n\n# ==")[0]

    def notebooks_until(self, last: str) -> list[str]:
        """Return the keys of the notebooks up to `last`, or of all if it is "".

        Raises:
            UserError: If the file has no part in this notebook.
        """
        keys = self.notebooks.split()
        if last and last not in keys:
            known = ", ".join(keys)
            raise UserError(f"until is {last!r}; for {self.file}, one of {known} expected")
        return keys[: keys.index(last or keys[-1]) + 1]

    @cached_property
    def parts(self) -> set[str]:
        """Names of the parts that are read."""
        return set(" ".join(self.outline.values()).split())


TRAIN_GPT2 = Recipe(
    "train_gpt2.py",
    "07 08 09 10 11",
    outline={
        "Model": "embed attention causal_self_attention mlp block init_weights gpt is_linear "
        "published_weights load_weights nucleus generate",
        "Data": "tokenizer tokens windows processes all_reduce micro_batches",
        "Optimizer": "learning_rate parameter_groups make_optimizer update",
        "Evaluation": "evaluate ending_losses hellaswag",
        "Loop": "buckets backward train fast save resume report settings main",
    },
)
