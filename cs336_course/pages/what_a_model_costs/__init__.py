"""The room of the page what_a_model_costs."""
