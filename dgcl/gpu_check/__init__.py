"""What there is to find out on a machine with a GPU, in one command: ``python -m dgcl.gpu_check``.

- :mod:`dgcl.gpu_check.row_speed`: the row kernels against the device's own copies, verified;
- :mod:`dgcl.gpu_check.probes`: what the driver and the device can do that the runtime may lean on.

Needs numpy, torch, numba and an NVIDIA driver; nothing is fetched.
"""
