"""The course around cs336_lib: exercises, figures, widgets, a learner's copy, and grading."""
