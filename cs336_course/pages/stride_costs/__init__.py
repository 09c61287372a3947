"""The room of the page stride_costs."""
