"""Differentiable collectives on rows: expand, fold, sums over ranks, fetch, and exchanges with a separate wait."""
