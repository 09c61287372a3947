"""Exercise checks, a module per notebook; each names the typical mistake it has caught."""
