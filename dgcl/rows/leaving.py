"""Rules for shapes, numbers, arrays, files and printed text of tensors whose rows are divided over ranks.

Shapes and types are one device's, the state of autograd and strides are the local tensor's, neither with a message.
Numbers, lists, arrays and files need all rows, so every rank must ask for them; ``print`` sends nothing and shows this
rank's.
Called by `rule_table`. Free to change while what a script prints or hands to NumPy is that of one device
(`tests/dgcl/rows/test_programs.py`), and what would see memory or storage is refused
(`tests/dgcl/rows/test_bypasses.py`).
"""

from typing import Any

from dgcl.ranks.torch_private import torch_function_on
from dgcl.rows.gathering import all_rows
from dgcl.rows.row_call import Call
from dgcl.rows.row_sums import as_ids, whole
from dgcl.rows.tensor import Rows, follow, replicated, rows, stored

#: Shapes, types and places: the wrapper has them as one device.
SEEN = set(
    str.split(
        """shape size numel nelement __len__ dim ndim ndimension dtype device layout is_cuda is_cpu is_sparse
    is_quantized is_complex is_floating_point is_signed is_tensor element_size itemsize nbytes get_device is_mps
    is_xpu is_meta is_nested is_mkldnn is_vulkan is_xla is_mtia is_ipu is_maia is_sparse_csr __hash__
    is_inference names has_names is_conj is_neg is_distributed is_shared storage_offset __dir__ result_type
    can_cast is_coalesced is_pinned"""
    )
)
#: The state of autograd, and how memory is laid out: that of the local tensor.
LOCAL = set(
    str.split(
        """requires_grad grad_fn is_leaf _version retains_grad retain_grad output_nr _backward_hooks _grad
    is_contiguous dim_order _post_accumulate_grad_hooks stride dense_dim sparse_dim"""
    )
)


def seen(call: Call) -> Any:
    """What the wrapper has."""
    return call.func(*call.args, **call.kwargs)


def of_local(call: Call) -> Any:
    """What the local tensor has."""
    return call.func(call.args[0]._local, *call.args[1:], **call.kwargs)


def in_place(call: Call) -> Any:
    """``detach_``, ``zero_``, ``fill_`` and ``requires_grad_``; a leaf of rows has a complete gradient."""
    own, *values = call.args[0], *map(whole, call.args[1:])
    if type(own) is not Rows:
        return call.func(own, *values, **call.kwargs)
    call.func(own._local, *values, **call.kwargs)
    own._local.dgcl_rows = True  # type: ignore[attr-defined]
    return follow(own)


def grad(call: Call) -> Any:
    """``x.grad`` of rows: rows, the same object as long as it is the gradient."""
    own = call.args[0]
    value, kept = own._local.grad, own.__dict__.get("_gradient")
    if value is not None and (kept is None or kept._local is not value):
        kept = own.__dict__["_gradient"] = rows(value, own._space, own._axis)
    return None if value is None else kept


def set_attribute(call: Call) -> None:
    """``x.grad = g``, ``x.data = y`` of rows of one space."""
    own, value = call.args
    if type(own) is not Rows or (type(value) is Rows and value._space is not own._space):
        raise RuntimeError(f"x.{call.name[:-1]} = y takes rows of the same vertices or edges (dgcl)")
    setattr(own._local, call.name[:-1], value._local if type(value) is Rows else value)


def data(call: Call) -> Any:
    """``x.data``, the same memory without a graph."""
    own = call.args[0]
    return rows(own._local.data, own._space, own._axis, own._ends)


def converted(call: Call) -> Any:
    """``x.to(...)`` of a type, a device, or those of another tensor, whose values do not matter."""
    own = call.args[0]
    out = call.mapped(stored)
    if type(own) is not Rows:
        return replicated(out, [own])
    if own._ends and out.is_floating_point():
        return converted(call.of(as_ids(own)))
    return own if out is own._local else rows(out, own._space, own._axis, own._ends)


def new(call: Call) -> Any:
    """``new_zeros`` and its kind: of all rows, until rows are written into them."""
    return replicated(call.func(stored(call.args[0]), *map(whole, call.args[1:]), **call.kwargs))


def out_of_torch(call: Call) -> Any:
    """Numbers, lists and arrays: those of one device, the same on every rank. Collective."""
    args, kwargs = all_rows(call)
    return call.func(*args, **kwargs)


def shown(call: Call) -> str:
    """What print shows: without a message, since debuggers and single ranks print."""
    own = call.args[0]
    comm = own._space.comm
    about = f"shape={tuple(own.shape)}, rank {comm.rank} of {comm.world_size} stores {own._local.shape[own._axis]}"
    return f"Rows({about}: {own._local!r})"


def deepcopy(call: Call) -> Any:
    """A copy is rows of the same space."""
    own, memo = call.args
    if not own._local.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user support the deepcopy protocol at the moment"
        )
    local = own._local.detach().clone().requires_grad_(own._local.requires_grad)
    local.dgcl_rows = True  # type: ignore[attr-defined]
    memo[id(own)] = rows(local, own._space, own._axis, own._ends)
    return memo[id(own)]


def pickled(call: Call) -> Any:
    """A file has the tensor of one device. Collective."""
    (own, *_), _ = all_rows(call)
    return own.detach().requires_grad_(call.first._local.requires_grad).__reduce_ex__(*call.args[1:])


def hooked(call: Call) -> Any:
    """A hook of rows gets rows, and may give some."""
    own, hook = call.args

    def run(gradient: Any) -> Any:
        with torch_function_on():
            out = hook(own if "post" in call.name else rows(gradient, own._space, own._axis))
        return out._local if type(out) is Rows else out

    return call.func(own._local, run)


def refused(call: Call) -> Any:
    """What would see memory or storage."""
    raise RuntimeError(
        f"{call.name} of rows that are divided over ranks: no device has all of them; take this rank's by"
        " dgcl.local(x)"
    )
