"""The room of the page low_bits."""
