"""The table that gives the rule for each function of torch by its name.

An entry is for speed: a function without one is tried for being row by row, else gets all rows. ``add`` stands for
``add_``, ``__add__``, ``__radd__`` and ``__iadd__``, too, and ``grad=`` for an assignment. Functions in ``OF_ALL_ROWS``
are not tried, as random rows may not find them out.
Called by `apply_rule`. Free to change while every call of torch gives what it gives on one device
(`tests/dgcl/rows/test_sweep.py`), and usual lines call no more functions of ours than now
(`tests/dgcl/rows/test_calls.py`).
"""

from collections.abc import Callable
from typing import Any

from dgcl.rows import drawing, indexing, leaving, reductions, row_losses, scatter, shapes
from dgcl.rows.differentiate import differentiate
from dgcl.rows.elementwise import elementwise
from dgcl.rows.joining import cat
from dgcl.rows.products import matmul
from dgcl.rows.row_call import Call

Rule = Callable[[Call], Any]

_ELEMENTWISE = set(
    str.split(
        """add sub mul div truediv floordiv floor_divide pow mod remainder fmod neg pos abs invert and or xor eq ne lt
    le gt ge lshift rshift true_divide subtract multiply divide negative absolute logical_and logical_or
    logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor greater greater_equal less less_equal
    not_equal maximum minimum fmax fmin where exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square sin cos tan
    atan atan2 arctan2 asin acos sinh cosh tanh sigmoid logsigmoid relu relu6 leaky_relu elu selu celu gelu silu
    mish softplus softsign tanhshrink hardtanh hardswish hardsigmoid prelu threshold clamp clamp_min clamp_max
    clip sign sgn floor ceil round trunc frac reciprocal erf erfc isnan isinf isfinite isclose nan_to_num lerp
    addcmul addcdiv masked_fill clone contiguous detach type float double half bfloat16 int long short char byte
    bool cpu cuda zeros_like ones_like full_like empty_like heaviside xlogy hypot copysign real imag conj logit
    rsub copy rad2deg deg2rad sinc lgamma digamma"""
    )
)

_KINDS: list[tuple[Rule, str]] = [
    *((row_losses.loss, name) for name in row_losses.LOSSES),
    *((reductions.reduction, name) for name in reductions.REDUCTIONS),
    *((leaving.seen, name) for name in leaving.SEEN),
    *((leaving.of_local, name) for name in leaving.LOCAL),
    (indexing.getitem, "__getitem__"),
    (indexing.setitem, "__setitem__"),
    (indexing.select, "index_select gather take_along_dim"),
    (indexing.embedding, "embedding"),
    (indexing.nonzero, "nonzero"),
    (
        scatter.scatter,
        "scatter_add index_add scatter_reduce scatter scatter_add_ index_add_ scatter_reduce_ scatter_",
    ),
    (scatter.bincount, "bincount"),
    (reductions.batch_norm, "batch_norm"),
    (matmul, "matmul mm mv dot vdot linear __matmul__ __rmatmul__"),
    (cat, "cat stack concat concatenate"),
    (shapes.shaped, "view reshape expand repeat flatten view_as expand_as reshape_as broadcast_to"),
    (shapes.unbound, "unbind chunk split tensor_split split_with_sizes __iter__"),
    (shapes.moved, "unsqueeze squeeze transpose t T"),
    (shapes.flipped, "flip"),
    (shapes.one_hot, "one_hot"),
    (differentiate, "backward"),
    (drawing.dropout, "dropout dropout_"),
    (
        drawing.drawn,
        """rand_like randn_like randint_like bernoulli bernoulli_ normal_ uniform_ random_ exponential_ geometric_
        log_normal_ cauchy_ multinomial normal poisson binomial alpha_dropout feature_dropout
        feature_alpha_dropout dropout1d dropout2d dropout3d rrelu gumbel_softmax native_dropout""",
    ),
    (leaving.in_place, "zero_ fill_ detach_ requires_grad_ requires_grad="),
    (leaving.grad, "grad"),
    (leaving.data, "data"),
    (leaving.set_attribute, "grad= data="),
    (leaving.converted, "to type_as"),
    (leaving.new, "new_zeros new_ones new_full new_empty new_tensor"),
    (leaving.deepcopy, "__deepcopy__"),
    (leaving.pickled, "__reduce_ex__"),
    (leaving.hooked, "register_hook register_post_accumulate_grad_hook"),
    (leaving.shown, "__repr__ __str__"),
    (
        leaving.out_of_torch,
        """numpy tolist item __array__ __bool__ __int__ __float__ __index__ __complex__ __contains__ __format__
        is_nonzero equal allclose is_same_size""",
    ),
    (
        leaving.refused,
        """data_ptr const_data_ptr storage untyped_storage __dlpack__ __dlpack_device__ share_memory_ set_ resize_
        resize_as_ as_strided as_strided_ pin_memory __cuda_array_interface__ to_mkldnn _make_dual _unpack_dual""",
    ),
]
_RULES = {name: rule for rule, names in _KINDS for name in names.split()}

#: Functions of a table and of what is looked up in it, which random rows may not tell from those of rows alone.
OF_ALL_ROWS = frozenset(
    str.split("""bucketize searchsorted isin take put index_put cdist histc unique msort slice_inverse""")
)

#: Functions that take numbers of ends as they are; to all others they are ids of vertices.
KEEPS_ENDS = frozenset(
    str.split(
        """__getitem__ __iter__ unbind clone contiguous detach long int to cpu cuda view view_as reshape expand
    expand_as unsqueeze squeeze flatten split chunk index_select scatter_add scatter_add_ index_add index_add_
    scatter_reduce scatter_reduce_ bincount shape size __len__ numel __repr__ new_zeros new_ones new_full
    new_empty __deepcopy__ dim ndim dtype device layout is_cuda is_floating_point t T transpose stack cat flip
    requires_grad grad_fn is_leaf data nelement gather take_along_dim repeat is_sparse _version is_contiguous
    element_size __hash__ is_complex"""
    )
)


def rule(name: str) -> Rule | None:
    """The rule of a function's name; None: it has none."""
    if name in _RULES:
        return _RULES[name]
    inner = name.strip("_") if name.startswith("__") else name.removesuffix("_")
    known = inner in _ELEMENTWISE or (
        name.startswith("__") and inner[0] in "ri" and inner[1:] in _ELEMENTWISE
    )
    return elementwise if known else None
