"""The type of the rows of a call, on which all ranks must agree."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowType:
    """The type of the rows of a call; all ranks must agree on it, besides the verb.

    Attributes:
        row_bytes: Size of a row.
        code: A number for the element type, the same on every rank.
        name: The element type's name, for messages.
        sum_code: Its index in :data:`dgcl.kernels.rows.SUMMABLE`; -1 if such rows cannot be summed.
    """

    row_bytes: int
    code: int
    name: str
    sum_code: int = -1
