"""Graphs that are born distributed, and graphs that change: each rank gives its own part, and nobody has the rest."""
