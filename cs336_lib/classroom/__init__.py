"""Code for the notebooks, such as toy models, figures and exercise checks.

The rest of cs336_lib doesn't depend on this package.
"""
