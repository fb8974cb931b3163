"""Transports: they move rows, as a rank's programs say. Shared memory, collectives, CUDA."""
