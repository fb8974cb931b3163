"""A pretended accelerator, "fgpu", in the host's memory: every operation of torch runs, and nobody reads its memory.

Tensors on it are wrappers. Torch's own operations see through them; ``numpy()`` and ``data_ptr()`` do not, and a tensor
of the CPU among them is an error. So what works here needs nothing but torch's operations on a device: no kernel of
ours, no address. What it does not show: streams, and the order of what is asynchronous.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("fgpu")
torch.fgpu.get_amp_supported_dtype = lambda: [torch.bfloat16]
DEVICE = torch.device("fgpu:0")

#: Operations that may see tensors of both.
_COPIES = ("aten._to_copy.default", "aten.copy_.default")
#: Operations for which the host waits, by which it has used so far.
_WAITS = (
    "aten._local_scalar_dense.default",
    "aten.nonzero.default",
    "aten.item.default",
    "aten.equal.default",
)
host_waits: set[str] = set()


class OnDevice(Tensor):
    """A tensor of the device; ``held`` is what it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        """Wrap a tensor of the CPU."""
        layout = (
            {"strides": held.stride(), "storage_offset": held.storage_offset()}
            if held.layout is torch.strided
            else {}
        )
        made = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=DEVICE, **layout)
        made.held = held
        torch._C._set_throw_on_mutable_data_ptr(made)
        return made

    def data_ptr(self) -> int:
        """Refuse."""
        raise RuntimeError("the host asks for the address of a device's tensor")

    def tolist(self) -> Any:
        """The numbers, for which the host waits."""
        host_waits.add("tolist")
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        return _run(func, args, kwargs or {})


class Pretend(TorchDispatchMode):
    """Within this, tensors can be made on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        return _run(func, args, kwargs or {})


def on_host(tensor: Tensor) -> Tensor:
    """What a tensor of either holds."""
    return tensor.held if isinstance(tensor, OnDevice) else tensor


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = str(func)
    if name in ("dgcl.expand.default", "dgcl.fold.default"):
        return _exchange(name, *args)
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    wrapped = [each for each in tensors if isinstance(each, OnDevice)]
    if wrapped and name in _WAITS:
        host_waits.add(name)
    strangers = [each for each in tensors if not isinstance(each, OnDevice) and each.dim() > 0]
    if wrapped and strangers and name not in _COPIES:
        raise RuntimeError(
            f"{name}: a tensor of the CPU {tuple(strangers[0].shape)} among those of the device"
        )
    target = kwargs.pop("device", None)
    kwargs.pop("pin_memory", None)
    on_device = bool(wrapped) if target is None else torch.device(target).type == "fgpu"
    if name == "aten.copy_.default":
        on_device = isinstance(args[0], OnDevice)
        if wrapped and not on_device:
            host_waits.add("copy to the host")
    if wrapped and not on_device and (kwargs.get("non_blocking") or args[2:] == (True,)):
        raise RuntimeError(f"{name}: the host may read rows that are still on their way from the device")
    if target is not None:
        kwargs["device"] = "cpu" if on_device else target
    result = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    if not on_device:
        return result
    same = {id(each.held): each for each in wrapped}
    in_place = func._schema.name.endswith("_") and not func._schema.name.endswith("__")
    if in_place and isinstance(args[0], OnDevice):
        return args[0]
    return tree_map(
        lambda x: same[id(x)] if id(x) in same else OnDevice(x) if type(x) is Tensor else x, result
    )


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _exchange(name: str, rows: Tensor, number: int, exchange: int = 0) -> Tensor:
    """The operators of :mod:`dgcl.autograd.operators`, which have no kernel for this device."""
    from dgcl.autograd import operators

    comm = operators._find(number)
    if "fold" in name:
        return operators.fold_now(comm, rows, exchange)
    return comm.transport.expand(rows, exchange)


# For threads of autograd, where the mode is not on.
_library = torch.library.Library("aten", "IMPL")


def _factory(name: str, of_host: Any):
    def make(*args: Any, **kwargs: Any) -> OnDevice:
        return OnDevice(of_host(*args, **kwargs | {"device": "cpu", "pin_memory": False}))

    _library.impl(name, make, "PrivateUse1")


_factory("empty.memory_format", torch.ops.aten.empty.memory_format)
_factory("empty_strided", torch.ops.aten.empty_strided.default)


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    on_host(target).copy_(on_host(source))
    return target


_library.impl("_copy_from", _copy_from, "PrivateUse1")


_empty = torch.empty


def _empty_unpinned(*size: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
    return _empty(*size, **kwargs)


torch.empty = _empty_unpinned  # the device has no pinned memory
