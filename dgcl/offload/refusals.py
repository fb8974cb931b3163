"""Checks the arguments of ``dgcl.Offload`` and of its layers, and raises errors that say what to do instead.

A chunk has some vertices and their in-edges alone. So modules whose results depend on more (statistics of all rows,
degrees, several hops) are refused by name. Where ranks call different layers, every rank raises.
Called by `offload` and `rehearsal`. Free to change while bad layers and options of layers
(`tests/dgcl/offload/test_layer.py`), and bad arguments of ``dgcl.Offload`` (`tests/dgcl/offload/test_offload.py`),
raise an error that names them.
"""

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgcl.nn.inexact import inexact_in_part
from dgcl.nn.layer_arguments import require_list
from dgcl.offload.description import OffloadMemory
from dgcl.planner import PlanOptions
from dgcl.ranks.context import context
from dgcl.ranks.control import Control
from dgcl.ranks.tensors import require_tensors
from dgcl.ranks.whole_rows import agree, require_same
from dgcl.topology.checks import check_choice, check_flag, shown


def check_module(module: Any, layer: str, aggregate: str | None) -> None:
    """Refuse modules that need all chunks before any, and layers of frameworks that take no graph of a chunk.

    Args:
        module: A module, or any callable.
        layer: What it is called in the message.
        aggregate: How rows are aggregated before it; None: it is called with a chunk's graph.

    Raises:
        TypeError: It cannot be called.
        ValueError: Naming the module in it, with a way out.
    """
    if not isinstance(module, torch.nn.Module):
        if not callable(module):
            raise TypeError(f"{layer}: module must be a torch.nn.Module or a function (got {_kind(module)})")
        return
    for part in inexact_in_part(module):
        raise ValueError(
            f"{layer}: {part.name or 'it'} ({part.module}) {part.why}, and a chunk is less: it has some vertices and"
            " their in-edges. Take a layer for each hop; give degrees as rows of x, or in edge_weight; normalise each"
            " row (torch.nn.LayerNorm), or all rows between layers, h = off.batch_norm(norm, h)"
        )
    kind = type(module)
    of_framework = kind.__module__.startswith(("torch_geometric.", "dgl."))
    if of_framework and aggregate is None and kind.__name__ != "Sequential":  # which may take a chunk's graph
        raise ValueError(
            f"{layer}: module must take (g, src, dst), a chunk's graph and rows (got a {kind.__name__} itself): take a"
            " module whose forward gives self.conv((src, dst), g.edge_index), or, where the layer takes no pair of"
            " rows, self.conv(src, g.edge_index)[: len(dst)]; of DGL, self.conv(g, (src, dst))"
        )


def check_rows_of_layer(name: str, inputs: Sequence[Any], num_owned: int) -> None:
    """Refuse other rows than an :class:`~dgcl.offload.offload.Offload` gives.

    Raises:
        TypeError, ValueError: Naming the layer.
    """
    if not inputs:
        raise TypeError(f"{name}: x must be a CPU tensor of rows, or a tuple of them (got an empty tuple)")
    for rows in inputs:
        if not isinstance(rows, Tensor) or rows.device.type != "cpu" or rows.layout != torch.strided:
            raise TypeError(
                f"{name}: x must be a dense CPU tensor of rows, or a tuple of them (got {_kind(rows)})"
            )
        if rows.dim() == 0 or len(rows) != num_owned or not rows.is_floating_point():
            raise ValueError(
                f"{name}: x must have {num_owned} floating point rows, as off.dispatch_features and off.layer"
                f" give them (got {rows.dtype}, shape {tuple(rows.shape)})"
            )


def check_aggregate(
    name: str,
    inputs: Sequence[Tensor],
    aggregate: str | None,
    own_rows: bool,
    edge_weight: Tensor | None,
    constant: bool,
    keep: bool | str,
    num_edges: int,
) -> None:
    """Refuse options of aggregation that do not go together.

    Raises:
        TypeError, ValueError: Naming the layer.
    """
    if aggregate is not None:
        check_choice(aggregate, f"{name}: aggregate", ("sum", "mean"))
    check_flag(own_rows, f"{name}: own_rows")
    check_flag(constant, f"{name}: constant")
    if not (isinstance(keep, (bool, np.bool_)) or (isinstance(keep, str) and keep == "auto")):
        raise ValueError(f"{name}: keep must be True, False or 'auto' (got {shown(keep)})")
    if aggregate is None and (own_rows or edge_weight is not None or constant or keep != "auto"):
        raise ValueError(
            f"{name}: own_rows, edge_weight, constant and keep go with aggregate='sum' or 'mean'"
        )
    if constant and keep is False:
        raise ValueError(
            f"{name}: constant=True keeps the aggregate; leave keep=False away, or constant=True"
        )
    if aggregate is not None and len(inputs) > 1:
        raise ValueError(f"{name}: aggregate takes one tensor of rows (got a tuple of {len(inputs)})")
    if constant and inputs[0].requires_grad:
        raise ValueError(f"{name}: x must not require a gradient with constant=True: its aggregate is kept")
    if edge_weight is None:
        return
    require_tensors(edge_weight=edge_weight)
    if (
        edge_weight.requires_grad
        or edge_weight.shape != (num_edges,)
        or edge_weight.is_complex()
        or edge_weight.layout != torch.strided
    ):
        raise ValueError(
            f"{name}: edge_weight must be {num_edges} constant weights, real and dense, as comm.dispatch_edges gives"
            f" them (got {edge_weight.dtype}, shape {tuple(edge_weight.shape)}, {edge_weight.layout},"
            f" requires_grad={edge_weight.requires_grad})"
        )


def no_room(memory: OffloadMemory, free: int) -> ValueError | None:
    """The error where rows are predicted to take more than is free in their store."""
    if memory.host is None or memory.host.total <= free:
        return None
    return ValueError(
        f"widths: rows take {memory.host.total} bytes, and {free} are free in {memory.store}. Ways out: (1) store= a"
        " folder on a larger disk, (2) more ranks, (3) narrower layers, (4) a smaller dtype"
    )


def agree_on_layer(
    control: Control, name: str, problem: Exception | None, inputs: Sequence[Tensor], how: Any
) -> None:
    """Raise on every rank where one has a problem, or calls another layer than the others. Collective.

    Args:
        control: Between ranks.
        name, inputs, how: Of the layer: what it is called, its rows, and its options.
        problem: Of this rank.
    """
    kinds: Any = None
    if problem is None:
        kinds = [(tuple(x.shape[1:]), str(x.dtype), x.requires_grad) for x in inputs]
    reports = agree(control, problem, (name, kinds, how, torch.is_grad_enabled()))
    require_same(**{"layers, and kinds of their rows,": reports})


def check_offload(
    comm: Any,
    memory_limit: Any,
    widths: Any,
    layers: Any,
    dtype: Any,
    plan: Any,
    keep_graphs: Any,
    store_cached: Any,
) -> None:
    """Refuse what cannot be, before anything is exchanged; what is the same on every rank, its record refuses.

    Raises:
        TypeError, ValueError: Naming the argument.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype (got {shown(dtype)})")
    if not (plan is None or isinstance(plan, PlanOptions)):
        raise TypeError(f"plan must be a dgcl.PlanOptions, or None (got {shown(plan)})")
    if keep_graphs is not None:
        check_flag(keep_graphs, "keep_graphs")
    check_flag(store_cached, "store_cached")
    comm.require_neighbourhoods("Offload")
    if comm.rounding.wire is not None:
        raise ValueError(
            f"comm rounds rows to wire={comm.rounding.wire}, and chunks travel as they are; leave it out"
        )
    if context.keeps_memory and (memory_limit is not None or not store_cached):
        raise ValueError(
            "memory_limit and store_cached=False go without keep_memory=True (of dgcl.init or dgcl.launch), by which"
            " the process keeps what chunks have freed; leave one of them out"
        )
    if memory_limit is not None or widths is not None or layers is not None:
        check_widths(widths)
    if layers is not None:
        if not hasattr(layers, "__len__") or len(layers) != len(widths) - 1:
            raise ValueError(
                f"layers must be {len(widths) - 1} modules, as widths says (got {shown(layers)})"
            )
        for number, each in enumerate(layers):
            if each is not None:
                check_module(each, f"layers[{number}]", None)
                learned_by(each, None)


def check_widths(widths: Any) -> None:
    """Refuse what are not the columns of a model's input and of each layer's result.

    Args:
        widths: What was given.

    Raises:
        ValueError: Not two or more positive integers.
    """
    if not (
        isinstance(widths, Sequence)
        and len(widths) >= 2
        and all(isinstance(each, Integral) and each is not True and int(each) > 0 for each in widths)
    ):
        raise ValueError(
            "widths must be given with memory_limit or layers, as integers: those of the input and of each layer's"
            f" result (got {shown(widths)})"
        )


def learned_by(module: Callable[..., Any], parameters: Iterable[Tensor] | None) -> list[Tensor]:
    """What a module learns, each once."""
    if isinstance(module, torch.nn.Module):
        if parameters is not None:
            raise TypeError("parameters goes with a function; those of a torch.nn.Module are known")
        return [p for p in module.parameters() if p.requires_grad]
    if parameters is None:
        raise TypeError(
            f"module must be a torch.nn.Module, or come with parameters=, those that it learns (got {_kind(module)})"
        )
    tensors = require_list(parameters, "parameters must be a list of tensors, those that module learns")
    return list({id(each): each for each in tensors if each.requires_grad}.values())


def _kind(value: Any) -> str:
    return f"a {value.layout} tensor on {value.device}" if isinstance(value, Tensor) else type(value).__name__
