"""Reads a model, described in a line or given as a module, into layers with their costs.

>>> model = read_model("gat:602,8x32,41")
>>> [(layer.width, layer.out, layer.heads) for layer in model.layers]
[(602, 256, 8), (256, 41, 1)]

Called by `choice`, `dgcl/options`, `dgcl/build`, `dgcl/cli/advise`, `counts` and others. Free to change while a line
keeps its meaning, parameters are those of the layers that it names, rows kept are those that autograd keeps (gcn, sage,
gin), and what is not understood is an error with examples (`tests/dgcl/advisor/test_model.py`). No test compares the
costs of mgn.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from dgcl.advisor.layers import ATTENTION, KINDS, Layer
from dgcl.topology.checks import check_choice, nearest, shown

#: Numbers that are kept for each parameter.
OPTIMIZERS = {"adam": 2, "momentum": 1, "sgd": 0}
#: Bytes of an element.
TYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


# Layers are those of :mod:`dgcl.nn` with ReLU between them (gcn, sage, gin), attention of there or of PyG without
# a row for each edge (gat, gatv2, transformer), and edge networks of two layers over both ends and the edge's own
# row (mgn), the last two distributed (:func:`dgcl.distribute`).


@dataclass(frozen=True)
class Model:
    """Layers, and how they are trained.

    Attributes:
        text: As it was written.
        layers: In order.
        optimizer: One of :data:`OPTIMIZERS`.
        dtype: One of :data:`TYPES`.
        training: With a backward.
        more: Parameters beside those of the layers.
    """

    text: str
    layers: tuple[Layer, ...]
    optimizer: str = "adam"
    dtype: str = "float32"
    training: bool = True
    more: int = 0

    @property
    def kinds(self) -> set[str]:
        """Of its layers."""
        return {layer.kind for layer in self.layers}

    @property
    def widths(self) -> list[int]:
        """Of the input and of each layer's result."""
        return [self.layers[0].width, *(layer.out for layer in self.layers)]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return TYPES[self.dtype]

    @property
    def parameters(self) -> int:
        """Of all layers, and others."""
        return sum(layer.parameters for layer in self.layers) + self.more

    @property
    def row_bytes(self) -> int:
        """Of the widest row that is exchanged."""
        return max(layer.exchanged for layer in self.layers) * self.itemsize

    def aggregates_back(self, number: int) -> bool:
        """Whether a layer's backward aggregates, too: features need no gradient, their products do."""
        return self.training and (number > 0 or self.layers[0].multiply_first)


def read_model(text: Any, *, optimizer: str = "adam", dtype: str = "float32", training: bool = True) -> Model:
    """The model that a line describes: ``KIND:d0,d1,..,dL``, heads as ``8x32``, rows of edges as ``64/16``.

    A module is traced (:mod:`dgcl.advisor.tracing`).

    Raises:
        ValueError: It is not understood; says what is.
    """
    if isinstance(text, Model):
        return text
    if not isinstance(text, str) and hasattr(text, "named_modules"):
        from dgcl.advisor.tracing import layers_of

        layers = tuple(layers_of(text))
        name = ", ".join(f"{layer.kind} {layer.width}-{layer.out}" for layer in layers)
        model = Model(f"{type(text).__name__} ({name})", layers, optimizer, dtype, training)
        return replace(model, more=sum(each.numel() for each in text.parameters()) - model.parameters)
    check_choice(optimizer, "optimizer", OPTIMIZERS)
    check_choice(dtype, "dtype", TYPES)
    kind, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    number = r"[1-9]\d*"
    understood = re.fullmatch(rf"({number}x)?{number}(,({number}x)?{number})+(/{number})?", rest)
    if kind not in KINDS or understood is None:
        examples, guess = ", ".join(KINDS.values()), "" if kind in KINDS else nearest(kind, KINDS)
        raise ValueError(f"model must be written like {examples} (got {shown(text)}){guess}")
    widths, _, edge_width = rest.partition("/")
    sizes = [
        (int(heads or 1), int(size)) for heads, _, size in (w.rpartition("x") for w in widths.split(","))
    ]
    if (kind not in ATTENTION and any(heads > 1 for heads, _ in sizes)) or bool(edge_width) != (
        kind == "mgn"
    ):
        raise ValueError(
            f"model {shown(text)}: heads, as in 8x32, are attention's; rows of edges, as in 64/16, are mgn's; like"
            f" {KINDS[kind]}"
        )
    layers = tuple(
        Layer(kind, before[0] * before[1], heads * size, heads, int(edge_width or 0))
        for before, (heads, size) in pairwise(sizes)
    )
    return Model(text, layers, optimizer, dtype, training)
