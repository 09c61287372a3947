"""Exercise checks in one module per notebook, which diagnose typical mistakes."""
