"""Gives the costs of one layer of a model: elements exchanged and kept, multiplications, parameters.

All figures are elements, or multiplications, of one row or of one edge; whoever uses them multiplies by rows, edges and
bytes. Kept is what autograd saves for the backward; a layer's input belongs to the layer before.
Called by `tracing`, `model_costs`, `counts` and `rank_bytes`. Free to change while parameters are as many as those of
real layers, and kept rows those that autograd saves (`tests/dgcl/advisor/test_model.py`).
"""

from dataclasses import dataclass

#: Models that are understood, and an example of each.
KINDS = {
    "gcn": "gcn:602,256,41",
    "sage": "sage:602,256,41",
    "gin": "gin:602,256,41",
    "gat": "gat:602,8x32,41",
    "gatv2": "gatv2:602,8x32,41",
    "transformer": "transformer:602,8x32,41",
    "mgn": "mgn:64,64/16",
}

#: Those with heads of attention; and all that need whole rows of whole neighbourhoods.
ATTENTION = {"gat", "gatv2", "transformer"}
WHOLE = ATTENTION | {"mgn"}


@dataclass(frozen=True)
class Layer:
    """One layer; all figures in elements.

    Attributes:
        kind: One of :data:`KINDS`; in a user's module also "sum" (no product) and "linear" (no exchange).
        width, out: Of a row of its input, and of its result.
        heads: Of attention; 1 otherwise.
        edge_width: Of an edge's own row; 0: edges have none.
        first: Whether rows are multiplied before they are aggregated; None: as ``order="auto"`` has it.
    """

    kind: str
    width: int
    out: int
    heads: int = 1
    edge_width: int = 0
    first: bool | None = None

    @property
    def multiply_first(self) -> bool:
        """Whether rows are multiplied before they are aggregated."""
        if self.first is not None:
            return self.first
        return self.kind in ATTENTION or (self.kind in ("gcn", "sage") and self.out < self.width)

    @property
    def exchanged(self) -> int:
        """Of a row that is exchanged and aggregated."""
        if self.kind == "linear":
            return 0
        return (self.out if self.multiply_first else self.width) + self.attention

    @property
    def attention(self) -> int:
        """Of those, what travels by itself, before the rows."""
        return {"gat": self.heads, "transformer": self.out}.get(self.kind, 0)

    @property
    def parameters(self) -> int:
        """Of matrices and biases."""
        biases = {"gin": 2, "gat": 3, "gatv2": 4, "transformer": 4, "mgn": 3, "sum": 0}.get(self.kind, 1)
        return self.products + self.edge_products + self.out * biases + self.edge_width

    @property
    def products(self) -> int:
        """Multiplications for a row, forward."""
        w, o = self.width, self.out
        inner = {"gin": o, "mgn": self.edge_width + o}.get(self.kind, 0)
        return o * ({"sage": 2, "gatv2": 2, "transformer": 4, "sum": 0}.get(self.kind, 1) * w + inner)

    @property
    def edge_products(self) -> int:
        """Multiplications for an edge, forward."""
        return self.out * (2 * self.width + 2 * self.edge_width) if self.kind == "mgn" else 0

    @property
    def passes(self) -> int:
        """How often an edge's row is read or written in the forward: once where it is summed as it is read.

        Of attention half of both ways: its backward multiplies the rows of both ends, too, and scores may read them.
        """
        return {"gat": 2, "gatv2": 3, "transformer": 3, "mgn": 5, "linear": 0}.get(self.kind, 1)

    @property
    def kept(self) -> int:
        """Of a row, for the backward; the input belongs to the layer before."""
        aggregate = 0 if self.multiply_first or not self.exchanged else self.width
        results = {"gin": 2, "gat": 2, "gatv2": 3, "transformer": 2, "sum": 0}.get(self.kind, 1)
        return aggregate + self.out * results + (self.kind in ("gcn", "sage"))

    @property
    def keeps_sum(self) -> bool:
        """Whether the backward takes the very sum that was made, and not what became of it."""
        return self.kind == "sage" and not self.multiply_first

    @property
    def kept_of_edge(self) -> int:
        """Of an edge, for the backward: of attention scores and weights, and no row."""
        if self.kind == "mgn":
            return 2 * self.width + 3 * self.edge_width + self.out
        return self.heads * (3 + (self.kind == "gat")) * (self.kind in ATTENTION)
