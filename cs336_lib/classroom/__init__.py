"""Code that only the notebooks use, such as toys, figures and exercise checks.

Production code never imports it.
"""
