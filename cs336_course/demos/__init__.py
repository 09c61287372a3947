"""What the story of a notebook needs and its reader need not see."""
