"""Torch's functions by kind. An entry is for speed; what has none is tried for being row by row, else gathered.

A name is that of the function; ``add`` stands for ``add_``, ``__add__``, ``__radd__`` and ``__iadd__``, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgcl.rows import drawing, leaving
from dgcl.rows.differentiate import differentiate
from dgcl.rows.elementwise import elementwise
from dgcl.rows.indexing import embedding, getitem, select, setitem, where
from dgcl.rows.joining import cat
from dgcl.rows.losses import LOSSES, loss
from dgcl.rows.norms import batch_norm
from dgcl.rows.products import matmul
from dgcl.rows.reductions import REDUCTIONS, reduction
from dgcl.rows.scatter import bincount, scatter
from dgcl.rows.shapes import flipped, moved, shaped, unbound

Rule = Callable[..., Any]

_ELEMENTWISE = set(
    "add sub mul div truediv floordiv floor_divide pow mod remainder fmod neg pos abs invert and or xor eq ne lt le gt ge"
    " lshift rshift true_divide subtract multiply divide negative absolute logical_and logical_or logical_not logical_xor"
    " bitwise_and bitwise_or bitwise_not bitwise_xor greater greater_equal less less_equal not_equal maximum minimum fmax"
    " fmin exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square sin cos tan atan atan2 arctan2 asin acos sinh cosh tanh"
    " sigmoid logsigmoid relu relu6 leaky_relu elu selu celu gelu silu mish softplus softsign tanhshrink hardtanh hardswish"
    " hardsigmoid prelu threshold clamp clamp_min clamp_max clip sign sgn floor ceil round trunc frac reciprocal erf erfc"
    " isnan isinf isfinite isclose nan_to_num lerp addcmul addcdiv masked_fill clone contiguous detach type"
    " float double half bfloat16 int long short char byte bool cpu cuda zeros_like ones_like full_like empty_like heaviside"
    " xlogy hypot copysign real imag conj logit rsub copy rad2deg deg2rad sinc lgamma digamma".split()
)
_IN_PLACE = {*_ELEMENTWISE} - {"detach", "fill", "zero"}

_BY_NAME: dict[str, Rule] = {
    "__getitem__": getitem,
    "__setitem__": setitem,
    "__len__": leaving.seen,
    "__contains__": leaving.contains,
    "__iter__": unbound,
    "bincount": bincount,
    "embedding": embedding,
    "batch_norm": batch_norm,
    "nonzero": where,
    "requires_grad_": leaving.requires_grad_,
    "requires_grad=": leaving.requires_grad_,
    "grad": leaving.grad,
    "grad=": leaving.set_grad,
    "data": leaving.data,
    "data=": leaving.set_data,
    "detach_": leaving.detach_,
    "__deepcopy__": leaving.deepcopy,
    "__reduce_ex__": leaving.pickled,
    "dropout": drawing.dropout,
    "dropout_": drawing.dropout,
    "backward": differentiate,
    "flip": flipped,
    "is_same_size": leaving.same_size,
    "to": leaving.converted,
    "type_as": leaving.converted,
    "__matmul__": matmul,
    "__rmatmul__": matmul,
    **dict.fromkeys(LOSSES, loss),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(leaving.SEEN, leaving.seen),
    **dict.fromkeys(leaving.OF_AUTOGRAD, leaving.of_autograd),
    **dict.fromkeys(("matmul", "mm", "mv", "dot", "linear", "vdot"), matmul),
    **dict.fromkeys(("index_select", "gather", "take_along_dim"), select),
    **dict.fromkeys(("cat", "stack", "concat", "concatenate"), cat),
    **dict.fromkeys(
        (
            "scatter_add",
            "index_add",
            "scatter_reduce",
            "scatter_add_",
            "index_add_",
            "scatter_reduce_",
            "scatter",
            "scatter_",
        ),
        scatter,
    ),
    **dict.fromkeys(
        (
            "view",
            "reshape",
            "expand",
            "repeat",
            "tile",
            "flatten",
            "unflatten",
            "ravel",
            "view_as",
            "expand_as",
        )
        + ("reshape_as", "broadcast_to"),
        shaped,
    ),
    **dict.fromkeys(("unbind", "chunk", "split", "tensor_split", "split_with_sizes"), unbound),
    **dict.fromkeys(
        (
            "unsqueeze",
            "squeeze",
            "transpose",
            "swapaxes",
            "swapdims",
            "movedim",
            "moveaxis",
            "permute",
            "t",
            "T",
            "mT",
        ),
        moved,
    ),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"), leaving.new),
    **dict.fromkeys(("rand_like", "randn_like", "randint_like"), drawing.like),
    **dict.fromkeys(
        "bernoulli bernoulli_ normal_ uniform_ random_ exponential_ geometric_ log_normal_ cauchy_ multinomial normal poisson"
        " binomial alpha_dropout feature_dropout feature_alpha_dropout alpha_dropout_ dropout1d dropout2d dropout3d rrelu"
        " rrelu_ gumbel_softmax native_dropout fractional_max_pool2d".split(),
        drawing.drawn,
    ),
    **dict.fromkeys(("zero_", "fill_"), leaving.filled),
    **dict.fromkeys(("register_hook", "register_post_accumulate_grad_hook"), leaving.hooked),
    **dict.fromkeys(("__repr__", "__str__", "__format__"), leaving.shown),
    **dict.fromkeys(
        "numpy tolist item __array__ __bool__ __int__ __float__ __index__ __complex__ __format__ is_nonzero equal allclose".split(),
        leaving.out_of_torch,
    ),
    **dict.fromkeys(
        "data_ptr const_data_ptr storage untyped_storage __dlpack__ __dlpack_device__ share_memory_ set_ resize_ resize_as_"
        " as_strided as_strided_ pin_memory _make_dual __cuda_array_interface__ to_mkldnn".split(),
        leaving.refused,
    ),
}
_BY_NAME["__format__"] = leaving.shown

#: Functions of a table and of what is looked up in it, which random rows may not tell from those of rows alone.
OF_ALL_ROWS = frozenset(
    "bucketize searchsorted isin take take_ put put_ index_put index_put_ cdist histc unique msort slice_inverse".split()
)

#: Functions that take numbers of ends of edges as they are; to all others they are ids of vertices.
KEEPS_ENDS = frozenset(
    "__getitem__ __iter__ unbind clone contiguous detach long int to cpu cuda view view_as reshape expand expand_as unsqueeze"
    " squeeze flatten split chunk index_select scatter_add scatter_add_ index_add index_add_ scatter_reduce"
    " scatter_reduce_ bincount shape size __len__ numel __repr__ new_zeros new_ones new_full new_empty"
    " __deepcopy__ dim ndim dtype device layout is_cuda is_floating_point t T"
    " transpose stack cat flip requires_grad grad_fn is_leaf data nelement gather take_along_dim permute repeat is_sparse"
    " _version is_contiguous stride element_size __hash__ is_complex movedim repeat_interleave_".split()
)


def rule(name: str) -> Rule | None:
    """The rule of a function's name; None: it has none."""
    found = _BY_NAME.get(name)
    if found is not None:
        return found
    if name.startswith("__") and name.endswith("__"):
        inner = name.strip("_")
        return (
            elementwise if inner in _ELEMENTWISE or inner[1:] in _ELEMENTWISE and inner[0] in "ri" else None
        )
    if name in _ELEMENTWISE or (name.endswith("_") and name[:-1] in _IN_PLACE):
        return elementwise
    return None
