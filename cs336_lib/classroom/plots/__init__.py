"""Figures that are readable from the back row and safe for colour-blind readers."""
