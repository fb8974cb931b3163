"""The figures of these pages, one file a page: ``python -m docs.figures --help``."""

import os

# Before torch and DGL are loaded, which read them once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DGLBACKEND", "pytorch")
