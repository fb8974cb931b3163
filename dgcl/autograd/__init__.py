"""The differentiable operators, and exchanges with a start and a separate wait."""
