"""What there is to find out on a machine with a GPU, in one command: ``python -m dgcl.gpu_check``.

Its parts are named in :mod:`dgcl.gpu_check.parts` and explained in docs/gpu.md.

Needs numpy, torch, numba and an NVIDIA driver; nothing is fetched.
"""
