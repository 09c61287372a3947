"""The room of the page start_here."""
