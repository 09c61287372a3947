"""Figures with large type and colours that colour-blind readers can distinguish."""
