"""What several pages run."""
