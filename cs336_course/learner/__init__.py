"""The copy of the notebooks that a learner works in, and its record."""
