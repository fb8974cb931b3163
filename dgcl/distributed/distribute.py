"""Prepares a model written for one device to run on rows of all ranks: :func:`dgcl.distribute`.

Changes it in place: known layers of PyG and DGL get other classes (``adapters``, ``dgl_attention``). Parameters get
rank 0's values and stay the same objects, so checkpoints and optimizers made before fit; lazy ones get them when they
are made. What ``torch.compile`` made runs uncompiled. Scripted functions are watched from now on
(:mod:`dgcl.rows.scripts`).
Run by users, as ``dgcl.distribute``. Free to change while whole training scripts print the numbers of one device
(`tests/dgcl/rows/test_programs.py`), and compiled models too (`tests/dgcl/rows/test_layers.py`).
"""

import logging
import os
from typing import Any, TypeVar

from torch.nn import Module
from torch.nn.parameter import is_lazy

from dgcl.communicator import Communicator
from dgcl.nn.gradients import broadcast_parameters
from dgcl.nn.layer_arguments import current, require_module
from dgcl.rows.row_sums import state_of
from dgcl.rows.scripts import see_scripts
from dgcl.topology.checks import check_flag

_log = logging.getLogger("dgcl")
_Model = TypeVar("_Model", bound=Module)


def distribute(model: _Model, comm: Communicator | None = None, *, check: bool | None = None) -> _Model:
    """Let a model that was written for one device run on rows of all ranks; in place. Collective.

        >>> data = dgcl.dispatch(data)
        >>> model = dgcl.distribute(model)
        >>> out = model(data.x, data.edge_index)           # rows of all vertices

    Layers of PyG that are known open their arguments, exchange what messages read at their sources, and run PyG's own
    kernels on this rank's rows; all else runs as it is, on the rows themselves. Parameters are rank 0's; they stay the
    same objects, under the same names, so checkpoints and an optimizer made before fit. ``backward`` sums gradients.

    A model, or a part, that was compiled runs as it is, not compiled: a compiler does not see which rows are whose.

    Args:
        model: The same architecture on every rank, on the device of the communicator.
        comm: The communicator; default the current one.
        check: Compare the outputs of the first call with those of one device (:mod:`dgcl.distributed.check`). Default:
            where vertices and edges times layers are at most two million; ``DGCL_CHECK=0`` says no.

    Returns:
        ``model``.

    Raises:
        ValueError: The communicator has no rows in one device's view.
    """
    comm = current(comm)
    require_module(model)
    if "view" not in vars(comm):
        raise ValueError(
            "model: distribute takes the data of dgcl.dispatch, or rows of dgcl.as_rows(x, comm), made before; a"
            " program on local rows takes the layers and norms of dgcl.nn"
        )
    see_scripts()
    root: Any = getattr(model, "_orig_mod", model)
    layers = 0
    for each in model.modules():
        if hasattr(each, "_orig_mod"):
            each.forward = each._orig_mod.__call__  # type: ignore[operator]
            if comm.rank == 0:
                _log.warning("distribute(%s): what torch.compile made runs as it is", type(root).__name__)
        elif any(kind.__name__ == "InvertibleModule" for kind in type(each).__mro__):  # of PyG
            each.disable = True  # type: ignore[assignment]  # what frees memory that autograd has
        elif type(each).__module__.startswith(("torch_geometric.nn.conv", "dgcl.distributed")):
            from dgcl.distributed.adapters import adapt, adaptable

            if adaptable(each):
                adapt(each)
                layers += 1
        elif type(each).__module__ == "dgl.nn.pytorch.conv.gatv2conv":
            from dgcl.distributed.dgl_attention import GATv2Conv

            each.__class__ = GATv2Conv
    for each in root.modules():
        if any(map(is_lazy, each.parameters(recurse=False))):
            each.register_forward_pre_hook(_OnceMade())  # comes after the hook that makes them
    broadcast_parameters(root, comm=comm, inexact="ignore")
    state_of(comm).models[root] = None
    for buffer in root.buffers():
        buffer.dgcl_whole = True
    from dgcl.distributed.check import LARGEST, FirstCall

    small = (comm.num_nodes + comm.num_edges) * max(layers, 1) <= LARGEST
    if (small and os.environ.get("DGCL_CHECK") != "0") if check is None else check_flag(check, "check"):
        root.register_forward_pre_hook(FirstCall(), with_kwargs=True)
    if comm.rank == 0:
        _log.info("distribute(%s): %s layers exchange rows inside", type(root).__name__, layers)
    return model


class _OnceMade:
    """Before a module's first forward: parameters that have just been made are rank 0's."""

    done = False

    def __call__(self, module: Module, inputs: Any) -> None:
        if not self.done:
            self.done = True
            broadcast_parameters(module, inexact="ignore")
