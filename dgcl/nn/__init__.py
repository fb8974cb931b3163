"""What a training program needs beside its layers for any number of ranks to give the numbers of one device.

Losses and accuracy over all ranks' vertices, gradients summed over ranks, dropout that depends on the vertex
and not on the rank, batch normalisation with statistics of the whole graph. Everything takes ``comm``, by
default the current communicator; what reduces over ranks is collective: every rank calls it, those without a
training vertex too.

May import everything of ``dgcl`` but the command line, benchmarks and calibration.
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
