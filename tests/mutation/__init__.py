"""Measure how many wrong answers the exercise checks refuse, by mutation of the solutions."""
