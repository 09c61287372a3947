"""The room of the page adagrad."""
