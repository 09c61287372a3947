"""The bill of a run: memory, traffic, time and price of training and serving a model."""
