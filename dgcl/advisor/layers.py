"""A layer of a model: what it costs a vertex, an edge and an exchange."""

from dataclasses import dataclass

#: Models that are understood, and an example of each.
KINDS = {
    "gcn": "gcn:602,256,41",
    "sage": "sage:602,256,41",
    "gin": "gin:602,256,41",
    "gat": "gat:602,8x32,41",
    "mgn": "mgn:64,64/16",
}


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
        return self.kind == "gat" or (self.kind in ("gcn", "sage") and self.out < self.width)

    @property
    def exchanged(self) -> int:
        """Of a row that is exchanged and aggregated."""
        if self.kind == "linear":
            return 0
        return (self.out if self.multiply_first else self.width) + self.attention

    @property
    def attention(self) -> int:
        """Of those, what travels by itself, before the rows."""
        return self.heads if self.kind == "gat" else 0

    @property
    def parameters(self) -> int:
        """Of matrices and biases."""
        biases = {"gin": 2, "gat": 3, "mgn": 3, "sum": 0}.get(self.kind, 1)
        return self.products + self.edge_products + self.out * biases + self.edge_width

    @property
    def products(self) -> int:
        """Multiplications for a row, forward."""
        w, o = self.width, self.out
        each = {"sage": 2 * w, "gin": w + o, "mgn": w + self.edge_width + o, "sum": 0}
        return o * each.get(self.kind, w)

    @property
    def edge_products(self) -> int:
        """Multiplications for an edge, forward."""
        return self.out * (2 * self.width + 2 * self.edge_width) if self.kind == "mgn" else 0

    @property
    def passes(self) -> int:
        """How often an edge's row is read or written in the forward: once where it is summed as it is read.

        Of attention half of both ways: its backward multiplies the rows of both ends, too.
        """
        return {"gat": 2, "mgn": 5, "linear": 0}.get(self.kind, 1)

    @property
    def kept(self) -> int:
        """Of a row, for the backward; the input belongs to the layer before."""
        aggregate = 0 if self.multiply_first or not self.exchanged else self.width
        results = {"gin": 2, "gat": 2, "sum": 0}.get(self.kind, 1)
        return aggregate + self.out * results + (self.kind in ("gcn", "sage"))

    @property
    def keeps_sum(self) -> bool:
        """Whether the backward takes the very sum that was made, and not what became of it."""
        return self.kind == "sage" and not self.multiply_first

    @property
    def kept_of_edge(self) -> int:
        """Of an edge, for the backward: of attention scores and weights, and no row."""
        return {"mgn": 2 * self.width + 3 * self.edge_width + self.out, "gat": 4 * self.heads}.get(
            self.kind, 0
        )
