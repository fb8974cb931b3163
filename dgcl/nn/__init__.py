"""Layers, losses, accuracy, dropout and batch normalisation that give the numbers of one device on any number of ranks.

Losses and accuracy are over all ranks' vertices, gradients are summed over ranks, dropout depends on the vertex and not
on the rank, batch normalisation has statistics of the whole graph. Everything takes ``comm``, by default the current
communicator; what reduces over ranks is collective: every rank calls it, those without a training vertex too.
Called by users. Free to change while ranks that own no vertex take part in everything and change nothing
(`tests/dgcl/nn/test_ranks_without_vertices.py`); each file names its own test.
"""

from dgcl.nn.attention import GATConv, GATv2Conv, TransformerConv
from dgcl.nn.batch_norm import BatchNorm
from dgcl.nn.convolutions import GCNConv, GINConv, SAGEConv
from dgcl.nn.gradients import broadcast_parameters, sync_gradients
from dgcl.nn.in_place import InPlaceGCN
from dgcl.nn.losses import loss
from dgcl.nn.metrics import accuracy
from dgcl.nn.reduce import count_once, global_sum
from dgcl.nn.shared_nodes import sum_shared
from dgcl.nn.vertex_dropout import Dropout, dropout

__all__ = [
    "BatchNorm",
    "Dropout",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "InPlaceGCN",
    "SAGEConv",
    "TransformerConv",
    "accuracy",
    "broadcast_parameters",
    "count_once",
    "dropout",
    "global_sum",
    "loss",
    "sum_shared",
    "sync_gradients",
]
