"""The room of the page gpt2_speed."""
