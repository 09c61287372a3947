"""The room of the page dtypes."""
