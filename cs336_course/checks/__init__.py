"""Exercise checks that diagnose typical mistakes, with one module per notebook."""
