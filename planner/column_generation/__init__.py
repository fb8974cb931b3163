"""Near-optimal plans by column generation: pricing, master problem, rounding, improvement, search."""
