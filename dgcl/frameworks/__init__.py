"""Gives a rank's local graph in the form that layers of DGL, PyG or plain torch take.

``local_graph("dgl", ...)`` gives a DGL block, ``"pyg"`` an ``edge_index`` with its sizes, ``"csr"`` torch tensors and
aggregation for plain torch. Their layers take the ``[owned | halo]`` rows that :func:`dgcl.graph_allgather` returns and
give the owned rows of a layer on the whole graph. DGL and PyG are optional: DGL is imported when asked for, and PyG's
layers take tensors of torch. Nothing here imports a communicator.
Called by `dgcl/communicator`, `dgcl/offload/chunk_graphs` and `dgcl/offload/rehearsal`. Free to change while a
framework that is missing is named with the command that installs it (`tests/dgcl/frameworks/test_optional.py`).
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from dgcl.topology.checks import check_choice

if TYPE_CHECKING:
    import torch

    from dgcl.frameworks.csr import CSRLocalGraph
    from dgcl.frameworks.dgl_block import LocalBlock
    from dgcl.frameworks.pyg import PyGLocalGraph
    from dgcl.relation.local_graph import LocalGraph

__all__ = ["local_graph"]

_MODULES = {"dgl": "dgl_block", "pyg": "pyg", "csr": "csr"}


def local_graph(
    kind: str, local: LocalGraph, *, device: torch.device | str | None = None
) -> LocalBlock | PyGLocalGraph | CSRLocalGraph:
    """The rank's local graph for the layers of one framework.

    Args:
        kind: "dgl" for a :class:`~dgcl.frameworks.dgl_block.LocalBlock`, "pyg" for a
            :class:`~dgcl.frameworks.pyg.PyGLocalGraph`, "csr" for a
            :class:`~dgcl.frameworks.csr.CSRLocalGraph`.
        local: the rank's edges, from ``comm.local``.
        device: where its tensors live; None means the CPU.

    Raises:
        ValueError: for any other ``kind``.
        ImportError: DGL is not installed, with the command that installs it.
    """
    return module_of(kind).build(local, device=device)  # type: ignore[no-any-return]


def module_of(kind: str) -> ModuleType:
    """The module for the layers of one framework; errors as of :func:`local_graph`."""
    check_choice(kind, "kind", _MODULES)
    try:
        return import_module(f"dgcl.frameworks.{_MODULES[kind]}")
    except (ImportError, OSError) as error:  # OSError: DGL's compiled parts do not match the installed torch
        raise ImportError(
            f"comm.local_graph({kind!r}) needs a library that cannot be imported here ({error}); install it with: pip"
            f" install dgcl[{kind}]"
        ) from error
