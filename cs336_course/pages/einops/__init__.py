"""The room of the page einops."""
