"""Near-optimal plans by prices: tree program, price loop, mixture, whole rows, certificate. Entry: ``search``."""
