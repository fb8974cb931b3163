"""What is read of rows without their values, and what leaves torch: numbers, arrays, files and text of one device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgcl.rows.gathering import all_rows, allow
from dgcl.rows.sums import as_ids, gather, whole
from dgcl.rows.tensor import Rows, follow, mapped, plain, replicated, rows

#: Shapes, types and places: the wrapper has them as one device.
SEEN = set(
    "shape size numel nelement __len__ dim ndim ndimension dtype device layout is_cuda is_cpu is_sparse is_quantized"
    " is_complex is_floating_point is_signed is_tensor element_size itemsize nbytes get_device"
    " is_mps is_xpu is_meta is_nested is_mkldnn is_vulkan is_xla is_mtia is_ipu is_ort is_maia is_sparse_csr __hash__"
    " is_inference names has_names is_conj is_neg is_distributed is_shared is_storage storage_offset type"
    " __dir__ is_nonzero_shape cuda_available data_ptr_ result_type can_cast promote_types isinstance_ is_coalesced"
    " is_pinned _is_view is_vulkan_available is_hpu".split()
) - {"type"}
#: The state of autograd, and how memory is laid out: that of the local tensor.
OF_AUTOGRAD = set(
    "requires_grad grad_fn is_leaf _version retains_grad retain_grad output_nr _backward_hooks _post_accumulate_grad_hooks"
    " _grad is_contiguous dim_order stride dense_dim sparse_dim".split()
)


def seen(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """What the wrapper has."""
    return func(*args, **kwargs)


def of_autograd(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """What the local tensor has."""
    return func(args[0]._local, *args[1:], **kwargs)


def requires_grad_(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """Rows become a leaf, or no longer are one."""
    own = args[0]
    value = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    own._local.requires_grad_(value)
    own._local.dgcl_rows = True
    return follow(own)


def grad(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``x.grad`` of rows: rows, the same object as long as it is the gradient."""
    own = args[0]
    value = own._local.grad
    if value is None:
        return None
    kept = own.__dict__.get("_gradient")
    if kept is None or kept._local is not value:
        kept = own.__dict__["_gradient"] = rows(value, own._space, own._axis)
    return kept


def set_grad(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``x.grad = g``."""
    own, value = args
    own.__dict__.pop("_gradient", None)
    own._local.grad = value._local if type(value) is Rows else value


def data(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``x.data``, the same memory without a graph."""
    own = args[0]
    return rows(own._local.data, own._space, own._axis, own._ends)


def set_data(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``x.data = y`` between rows of one space."""
    own, value = args
    if type(own) is not Rows or type(value) is not Rows or own._space is not value._space:
        raise ValueError("x.data = y takes rows of the same space (dgcl)")
    own._local.data = value._local


def converted(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``x.to(...)`` of a type, a device, or those of another tensor, whose values do not matter."""
    args, kwargs = mapped(_part, args), mapped(_part, kwargs)
    out = func(*args, **kwargs)
    if out is args[0]:
        return first if args[0] is first._local else out
    if args[0] is not first._local:
        return replicated(out)
    if first._ends and out.is_floating_point():
        ids = as_ids(first)
        return rows(func(ids._local, *args[1:], **kwargs), ids._space, ids._axis)
    return rows(out, first._space, first._axis, first._ends)


def _part(value: Tensor) -> Any:
    return value._local if type(value) is Rows else plain(value)


def detach_(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """In place."""
    args[0]._local.detach_()
    return follow(args[0])


def filled(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``zero_`` and ``fill_``."""
    own = args[0]
    value = [
        plain(each) if isinstance(each, Tensor) and type(each) is not Rows else whole(each)
        for each in args[1:]
    ]
    if type(own) is not Rows:
        return func(own, *value, **kwargs)
    func(own._local, *value, **kwargs)
    return follow(own)


def new(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """``new_zeros`` and its kind: of all rows, until rows are written into them."""
    if type(args[0]) is not Rows:
        return replicated(func(*[whole(each) for each in args], **kwargs), args)
    return replicated(func(args[0]._local, *[whole(each) for each in args[1:]], **kwargs))


def out_of_torch(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """Numbers, lists and arrays: those of one device, the same on every rank. Collective."""
    args, kwargs = all_rows(name, args, kwargs)
    return func(*args, **kwargs)


def shown(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> str:
    """What print shows: without a message, since debuggers and single ranks print."""
    own = args[0]
    comm = own._space.comm
    if name == "__format__" and own.dim() == 0:
        return format(whole(own).item(), args[1])
    about = f"shape={tuple(own.shape)}, rank {comm.rank} of {comm.world_size} stores {own._local.shape[own._axis]}"
    return f"Rows({about}: {own._local!r})"


def deepcopy(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """A copy is rows of the same space."""
    own, memo = args[0], args[1]
    if not own._local.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user support the deepcopy protocol at the moment"
        )
    local = own._local.detach().clone()
    copied = rows(local, own._space, own._axis, own._ends)
    if own._local.requires_grad:
        local.requires_grad_()
        local.dgcl_rows = True  # type: ignore[attr-defined]
        follow(copied)
    memo[id(own)] = copied
    return copied


def pickled(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """A file has the tensor of one device. Collective."""
    own = args[0]
    allow(name, own, own.numel())
    return gather(own).detach().requires_grad_(own._local.requires_grad).__reduce_ex__(*args[1:])


def hooked(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """A hook of rows gets rows, and may give some."""
    own, hook = args
    space, axis = own._space, own._axis

    def run(gradient: Any) -> Any:
        if name == "register_post_accumulate_grad_hook":
            return hook(own)
        with torch._C._EnableTorchFunction():  # type: ignore[attr-defined]
            out = hook(rows(gradient, space, axis))
        return out._local if type(out) is Rows else out

    return func(own._local, run)


def refused(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> Any:
    """What would see memory or storage."""
    raise RuntimeError(
        f"{name} of rows that are shared out over ranks: they have no memory of one device; dgcl.local(x) gives this rank's"
    )


def same_size(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> bool:
    """Whether two shapes are equal."""
    return bool(args[0].shape == args[1].shape)


def contains(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], first: Rows) -> bool:
    """``value in x``."""
    own, value = args
    return bool((own == value).any()) if type(own) is Rows else bool((value == own).any())
