"""Scores of a model: its loss, and HellaSwag."""
