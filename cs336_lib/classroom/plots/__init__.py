"""Figures drawn for the back row: large type, colour-blind-safe, axes with units."""
