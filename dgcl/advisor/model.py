"""A model in a line: its layers, and what each costs a vertex, an edge and an exchange.

>>> model = read_model("gat:602,8x32,41")
>>> [(layer.width, layer.out, layer.heads) for layer in model.layers]
[(602, 256, 8), (256, 41, 1)]

Layers are those of :mod:`dgcl.nn` with ReLU between them (gcn, sage, gin), PyG's ``GATConv`` (gat), and edge networks
of two layers over both ends and the edge's own row (mgn), the last two distributed (:func:`dgcl.distribute`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from dgcl.topology.checks import check_choice, nearest, shown

__all__ = ["KINDS", "OPTIMIZERS", "TYPES", "Layer", "Model", "read_model"]

#: Models that are understood, and an example of each.
KINDS = {
    "gcn": "gcn:602,256,41",
    "sage": "sage:602,256,41",
    "gin": "gin:602,256,41",
    "gat": "gat:602,8x32,41",
    "mgn": "mgn:64,64/16",
}
#: Numbers that are kept for each parameter.
OPTIMIZERS = {"adam": 2, "momentum": 1, "sgd": 0}
#: Bytes of an element.
TYPES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Layer:
    """One layer; all figures in elements.

    Attributes:
        kind: One of :data:`KINDS`.
        width, out: Of a row of its input, and of its result.
        heads: Of attention; 1 otherwise.
        edge_width: Of an edge's own row; 0: edges have none.
    """

    kind: str
    width: int
    out: int
    heads: int = 1
    edge_width: int = 0

    @property
    def multiply_first(self) -> bool:
        """Whether rows are multiplied before they are aggregated, as ``order="auto"`` has it."""
        return self.kind == "gat" or (self.kind in ("gcn", "sage") and self.out < self.width)

    @property
    def exchanged(self) -> int:
        """Of a row that is exchanged and aggregated."""
        attention = self.heads if self.kind == "gat" else 0
        return (self.out if self.multiply_first else self.width) + attention

    @property
    def parameters(self) -> int:
        """Of matrices and biases."""
        w, o = self.width, self.out
        if self.kind == "mgn":
            e = self.edge_width
            return (2 * w + e) * o + o * e + o + e + (w + e) * o + o * o + 2 * o
        return o * {"gcn": w + 1, "sage": 2 * w + 1, "gin": w + o + 2, "gat": w + 3}[self.kind]

    @property
    def products(self) -> int:
        """Multiplications for a row, forward."""
        w, o = self.width, self.out
        return (
            o * {"gcn": w, "sage": 2 * w, "gin": w + o, "gat": w, "mgn": w + self.edge_width + o}[self.kind]
        )

    @property
    def edge_products(self) -> int:
        """Multiplications for an edge, forward."""
        return self.out * (2 * self.width + 2 * self.edge_width) if self.kind == "mgn" else 0

    @property
    def passes(self) -> int:
        """How often an edge's row is read or written in the forward: once where it is summed as it is read."""
        return {"gat": 4, "mgn": 5}.get(self.kind, 1)

    @property
    def kept(self) -> int:
        """Of a row, for the backward; the input belongs to the layer before."""
        aggregate = 0 if self.multiply_first else self.width
        return (
            aggregate + self.out * (2 if self.kind in ("gin", "gat") else 1) + (self.kind in ("gcn", "sage"))
        )

    @property
    def kept_of_edge(self) -> int:
        """Of an edge, for the backward."""
        if self.kind == "mgn":
            return 2 * self.width + 3 * self.edge_width + self.out
        return self.out + 4 * self.heads if self.kind == "gat" else 0


@dataclass(frozen=True)
class Model:
    """Layers, and how they are trained.

    Attributes:
        text: As it was written.
        layers: In order.
        optimizer: One of :data:`OPTIMIZERS`.
        dtype: One of :data:`TYPES`.
        training: With a backward.
    """

    text: str
    layers: tuple[Layer, ...]
    optimizer: str = "adam"
    dtype: str = "float32"
    training: bool = True

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`."""
        return self.layers[0].kind

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
        """Of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def row_bytes(self) -> int:
        """Of the widest row that is exchanged."""
        return max(layer.exchanged for layer in self.layers) * self.itemsize

    def aggregates_back(self, number: int) -> bool:
        """Whether a layer's backward aggregates, too: features need no gradient, their products do."""
        return self.training and (number > 0 or self.layers[0].multiply_first)


def read_model(
    text: str | Model, *, optimizer: str = "adam", dtype: str = "float32", training: bool = True
) -> Model:
    """The model that a line describes: ``KIND:d0,d1,..,dL``, heads as ``8x32``, rows of edges as ``64/16``.

    Raises:
        ValueError: It is not understood; says what is.
    """
    if isinstance(text, Model):
        return text
    check_choice(optimizer, "optimizer", OPTIMIZERS)
    check_choice(dtype, "dtype", TYPES)
    kind, _, rest = (
        text.strip().replace(" ", ":", 1).partition(":") if isinstance(text, str) else ("", "", "")
    )
    understood = re.fullmatch(r"(\d+x)?\d+(,(\d+x)?\d+)+(/\d+)?", rest.replace(" ", ""))
    if kind not in KINDS or understood is None:
        examples, guess = ", ".join(KINDS.values()), "" if kind in KINDS else nearest(kind, KINDS)
        raise ValueError(f"model must be written like {examples} (got {shown(text)}){guess}")
    widths, _, edge_width = rest.replace(" ", "").partition("/")
    sizes = [
        (int(heads or 1), int(size)) for heads, _, size in (w.rpartition("x") for w in widths.split(","))
    ]
    wrong = None
    if any(size < 1 or heads < 1 for heads, size in sizes):
        wrong = "widths must be at least 1"
    elif kind != "gat" and any(heads > 1 for heads, _ in sizes):
        wrong = "heads, as in 8x32, are gat's"
    elif bool(edge_width) != (kind == "mgn"):
        wrong = "rows of edges, as in 64/16, are mgn's"
    if wrong:
        raise ValueError(f"model {shown(text)}: {wrong}; like {KINDS[kind]}")
    layers = tuple(
        Layer(kind, before[0] * before[1], heads * size, heads, int(edge_width or 0))
        for before, (heads, size) in pairwise(sizes)
    )
    return Model(text, layers, optimizer, dtype, training)
