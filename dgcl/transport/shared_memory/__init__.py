"""The shared-memory runtime: executes a rank's programs, with deadlines, and with peers that may fail."""

from __future__ import annotations

from dgcl.transport.shared_memory.executor import Runtime

__all__ = ["Runtime"]
