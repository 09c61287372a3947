"""Mutants of the exercises of 08_gpt2_training that are right."""

OPEN_DTYPE = "The task leaves the dtype of the number open, and a float64 has the same value."
NO_GRAPH = "The result of the solution has no graph either."

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    name: {"other dtype": OPEN_DTYPE, "no gradient": NO_GRAPH}
    for name in ("update", "backward", "evaluate")
}
