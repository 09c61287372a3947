"""Figures readable from the back row, colour-blind-safe, and with units on their axes."""
