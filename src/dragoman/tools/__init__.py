"""Tools: Python functions that a model may call, and what runs them."""
