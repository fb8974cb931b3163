"""The best fractional plan: prices by multiplicative weights, mixtures of kept columns, a simplex."""
