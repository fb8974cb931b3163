"""Two verbs: :func:`dgcl.dispatch` gives data in one device's view, :func:`dgcl.distribute` lets a model run on it.

Rows themselves are in :mod:`dgcl.rows`. Here is what the two verbs add for PyG and DGL: layers of PyG get a subclass of
their own class that opens its arguments and exchanges rows inside (``adapters``); a graph of DGL becomes a
``RankGraph``. A class is what copies, pickles and wrappers of modules carry along; hooks of an instance are not.
"""
