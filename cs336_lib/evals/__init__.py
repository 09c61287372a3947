"""Evaluate a model by its validation loss and on HellaSwag."""
