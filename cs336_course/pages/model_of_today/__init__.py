"""The room of the page model_of_today."""
