"""One verb on the model there is: :func:`dgcl.distribute` lets a single-device model run on ranks as it is.

Each module that aggregates gets a subclass of its own class, in which rows are exchanged before messages are made;
norms and dropouts get those of :mod:`dgcl.nn`. A class is what copies, pickles, compilers, checkpointing and wrappers
of modules carry along; hooks and attributes of an instance are not. What cannot be made exact is refused by name.
"""
