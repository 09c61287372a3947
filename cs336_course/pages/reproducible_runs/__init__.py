"""The room of the page reproducible_runs."""
