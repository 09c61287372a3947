"""Build one-file trainers from the parts that a learner has written in the notebooks."""
