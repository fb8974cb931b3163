"""The verb: finds what aggregates, normalises and drops in a model, and lets it run on ranks."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy

from dgcl.distributed.classes import Distributed, become, plain
from dgcl.distributed.edge_numbers import numbers_read
from dgcl.distributed.functional_dropout import DROPOUTS, dropping
from dgcl.distributed.home import Home
from dgcl.distributed.norms import NORMS, norm
from dgcl.nn.arguments import current, require_module
from dgcl.nn.batch_norm import BatchNorm
from dgcl.nn.gradients import broadcast_parameters
from dgcl.nn.inexact import Finding, refusals
from dgcl.nn.vertex_dropout import Dropout
from dgcl.rows.scripts import see_scripts
from dgcl.rows.sums import state_of
from dgcl.testing.first_call import compare_once
from dgcl.topology.checks import check_flag

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


_log = logging.getLogger("dgcl")
_Model = TypeVar("_Model", bound=Module)


def distribute(model: _Model, comm: Communicator | None = None, *, check: bool = False) -> _Model:
    """Let a model that was written for one device run on ranks as it is; in place. Collective.

        >>> data = dgcl.dispatch(data)
        >>> model = dgcl.distribute(model)
        >>> out = model(data.x, data.edge_index)           # rows of this rank

    Each layer of PyG that aggregates (``MessagePassing``, also within others, and classes of your own) exchanges what
    its messages read at their sources, at each hop. ``BatchNorm``, ``GraphNorm``, ``PairNorm`` and ``LayerNorm`` take
    statistics over all vertices, degrees are those of the whole graph, and dropout, also as a function, depends on the
    vertex or edge. Parameters are rank 0's; they stay the same objects, under the same names, so checkpoints and an
    optimizer made before fit.

    Layers of DGL need nothing done: the graph that ``dispatch`` gives exchanges.

    Args:
        model: The same architecture on every rank, on the device of the communicator.
        comm: The communicator; default the current one. Edges of another one that ``dispatch`` gave take that.
        check: At the first call, run the model as it was on one device with the whole graph, too, and raise an
            AssertionError on every rank where outputs or gradients differ (:mod:`dgcl.testing.first_call`).

    Returns:
        ``model``.

    Raises:
        ValueError: Modules that cannot be made exact, by name, and what to do; nothing has been changed then.
    """
    comm = current(comm)
    require_module(model)
    root: Any = getattr(model, "_orig_mod", model)  # of a compiled model
    if "view" in comm.__dict__:  # what dgcl.dispatch(typed=True) gave
        return _in_view(model, root, comm)
    refused = refusals(root)
    for name, part in root.named_modules():
        if isinstance(part, torch.fx.GraphModule) and any(n.target in DROPOUTS for n in part.graph.nodes):
            cure = "take torch.nn.Dropout before it is traced"
            refused.append(Finding(name, "torch.fx.GraphModule", "calls dropout as a function", cure))
        if read := numbers_read(type(part)):
            why = f"reads {', '.join(sorted(read))} in messages, which are a rank's"
            cure = "give propagate what is computed of them, as an argument"
            refused.append(Finding(name, type(part).__name__, why, cure))
    if refused:
        raise ValueError("model cannot be distributed as it is:" + "".join(f"\n  {each}" for each in refused))
    home, kind = Home(comm), type(root).__name__
    in_training = refusals(root, training=True)
    changes = Counter(_change(module, name, home, comm) for name, module in list(root.named_modules()))
    for each in in_training:
        module: Any = root.get_submodule(each.name)
        if not isinstance(module, Distributed):
            become(module, plain, home)
        module.dgcl_refused = str(each)
    _broadcast(root, comm)
    if check_flag(check, "check"):
        compare_once(root, comm)
    if comm.rank == 0:
        done = "; ".join(f"{count} {what}" for what, count in changes.items() if what)
        _log.info("distribute(%s): %s", kind, done or "nothing to change")
    return model


def _in_view(model: _Model, root: Any, comm: Communicator) -> _Model:
    """In one device's view layers that are known get adapters, and all else stays as it is."""
    from dgcl.distributed.adapters import adapt, adaptable

    if root is not model:
        raise ValueError(
            "model is compiled as a whole, and a compiler does not see which rows are whose: compile parts that get"
            " dgcl.local(x), or dispatch data without typed"
        )
    see_scripts()
    home = Home(comm)
    refused = {each.name for each in refusals(root)}
    layers = [(name, each) for name, each in root.named_modules() if name not in refused and adaptable(each)]
    for name, each in layers:
        adapt(each, home)
        exchange = name.rpartition(".")[2].strip("<>").replace("___", "__")
        if exchange in comm.exchanges:
            each.dgcl_exchange = exchange  # type: ignore[assignment]
    _broadcast(root, comm)
    state_of(comm).models[root] = None
    for buffer in root.buffers():
        buffer.dgcl_whole = True  # type: ignore[attr-defined]
    if comm.rank == 0:
        _log.info("distribute(%s): %s layers exchange rows inside", type(root).__name__, len(layers))
    return model


_KNOWN = "torch.", "torch_geometric.", "dgcl.", "dgl."
_NORM = "norms take statistics over all vertices"
_DROP = "dropouts drop by vertex"


def _change(module: Module, name: str, home: Home, comm: Communicator) -> str:
    """Give a module the class that it needs, and return what that does; "" for nothing."""
    if isinstance(module, Distributed):
        module.dgcl_home = home
        return ""
    kinds = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch_geometric.")]
    if "MessagePassing" in kinds:
        from dgcl.distributed.messages import message_passing

        seen = not name or any(
            not getattr(each, "dgcl_base", type(each)).__module__.startswith(_KNOWN)
            or any(map(callable, vars(each).values()))  # a function, as GINConv takes for nn
            for each in module.modules()
        )
        become(module, message_passing, home)
        module.dgcl_root = seen or None  # type: ignore[assignment]
        exchange = name.rpartition(".")[2].strip("<>").replace("___", "__")
        if exchange in comm.exchanges:
            module.dgcl_exchange = exchange  # type: ignore[assignment]
        return "layers exchange rows before they aggregate"
    if NORMS.keys() & {*kinds} and getattr(module, "mode", "graph") == "graph":
        become(module, norm, home)
        return _NORM
    if type(module) is torch.nn.BatchNorm1d:
        module.__class__ = BatchNorm  # type: ignore[assignment]
        module._comm, module._counts_rows = None, True  # type: ignore[assignment]
        return _NORM
    if type(module) is torch.nn.Dropout:
        module.__class__ = Dropout  # type: ignore[assignment]
        module.seed, module.edges, module._comm = 0, None, None  # type: ignore[assignment]
        return _DROP
    own = not name or not type(module).__module__.startswith(_KNOWN)
    if not isinstance(module, torch.fx.GraphModule) and (own or dropping(type(module))):
        become(module, plain, home)
        module.dgcl_root = own  # type: ignore[assignment]
    return ""


def _broadcast(root: Module, comm: Communicator) -> None:
    """Let parameters be rank 0's; those that a first forward makes, then."""
    for module in root.modules():
        if any(map(is_lazy, module.parameters(recurse=False))):
            module.register_forward_pre_hook(_OnceMade())  # comes after the hook that makes them
    broadcast_parameters(root, comm=comm, inexact="ignore")


class _OnceMade:
    """Before a module's first forward: parameters that have just been made are rank 0's."""

    done = False

    def __call__(self, module: Module, inputs: Any) -> None:
        if not self.done:
            self.done = True
            broadcast_parameters(module, inexact="ignore")
