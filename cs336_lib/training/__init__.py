"""Train a model: the loop, its run folder, checkpoints, metrics and processes."""
