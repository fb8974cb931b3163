"""The shared-memory runtime: executes a rank's programs, with deadlines, and with peers that may fail."""
