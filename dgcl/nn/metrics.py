"""The accuracy over the vertices of all ranks: :func:`dgcl.nn.accuracy`.

Ranks sum the numbers of right and of counted vertices as integers, so all get the same value; NaN where none counts.
Called by users and `dgcl/offload/chunked_losses`. Free to change while it equals the accuracy of all rows exactly, with
any mask and number of ranks (`tests/dgcl/nn/test_metrics.py`).
"""

import torch
from torch import Tensor

from dgcl.communicator import Communicator
from dgcl.nn.layer_arguments import current, require_dense, require_floats, require_whole_rows
from dgcl.nn.losses import check_mask
from dgcl.ranks.tensors import require_tensors


def accuracy(
    logits: Tensor, labels: Tensor, mask: Tensor | None = None, *, comm: Communicator | None = None
) -> Tensor:
    """The fraction of the vertices of all ranks whose largest logit is that of their label. Collective.

    Args:
        logits: (num_owned, num_classes), this rank's rows.
        labels: (num_owned,) classes.
        mask: (num_owned,) bool, the rows that count; default all.
        comm: the communicator; default the current one.

    Returns:
        A float64 scalar, the same on every rank; NaN if no vertex counts on any rank.
    """
    mask = rows_that_count(logits, labels, mask)
    comm = current(comm)
    require_whole_rows(comm, logits)
    right = (logits.argmax(dim=1) == labels) & mask
    num_right, num_all = comm.all_reduce_sum(torch.stack([right.sum(), mask.sum()]), "accuracy").unbind()
    return num_right.double() / num_all.double()


def rows_that_count(logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
    """The mask, or one of all rows.

    Raises:
        TypeError, ValueError: Logits of classes, labels or mask do not fit.
    """
    require_floats(logits=logits)
    require_tensors(labels=labels)
    require_dense(logits=logits, labels=labels)
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            "logits must be (num_owned, num_classes) and labels (num_owned,)"
            f" (got {tuple(logits.shape)} and {tuple(labels.shape)})"
        )
    check_mask(mask, len(labels))
    return torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
