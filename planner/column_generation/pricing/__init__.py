"""The cheapest trees at given prices: states, the tree program over them, and what their choices load."""
