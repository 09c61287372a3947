"""The room of inside_a_model: what its page shows and runs."""
