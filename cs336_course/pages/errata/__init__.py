"""The room of the page errata."""
