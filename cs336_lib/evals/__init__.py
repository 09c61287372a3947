"""Evaluation of a model by its loss and by HellaSwag."""
