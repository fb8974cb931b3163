"""The differentiable operators, and exchanges that are started and waited for apart."""
