"""The room of the page recipe_of_today."""
