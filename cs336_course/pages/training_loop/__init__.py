"""The room of the page training_loop."""
