"""What only the notebooks use: toys, figures and exercise checks. Production never imports it."""
