"""Ideas and accepted mutants, one module per notebook. Each is named like the notebook's checks."""
