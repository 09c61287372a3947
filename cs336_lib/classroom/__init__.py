"""Code that only the notebooks use, such as toy models, figures and exercise checks.

The rest of the package doesn't import it.
"""
