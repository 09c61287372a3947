"""The web page of a run, and its model card."""
