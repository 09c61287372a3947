"""The room of the page thousands_of_gpus."""
