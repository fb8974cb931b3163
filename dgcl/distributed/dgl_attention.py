"""DGL's GATv2Conv for distributed models, without a row of messages for each edge.

DGL's layer makes an (edges, heads, width) tensor; this one makes scores and sums as it reads rows. DGL's ``GATConv``
and ``DotGatConv`` make no such tensor and stay as they are. With hooks on its parts DGL's own forward runs.
Called by `distribute`, which sets the class of DGL's layers. Free to change while results and gradients are those of
one device, and ``repr`` says which forward runs (`tests/dgcl/rows/test_attention.py`, cases "of DGL" and "DGL").
"""

from typing import Any

import dgl.nn as dnn
from dgl.nn.functional import edge_softmax
from torch.nn import LeakyReLU

from dgcl.distributed.attention import hooked
from dgcl.distributed.rank_graph import RankGraph


class GATv2Conv(dnn.GATv2Conv):  # type: ignore[misc]  # DGL has no type stubs
    """DGL's layer, which makes scores of both ends' rows, and sums rows, as it reads them."""

    def forward(self, graph: Any, feat: Any, get_attention: bool = False) -> Any:
        """As DGL's. Collective on a rank's graph."""
        known = type(graph) is RankGraph and not get_attention and not hooked(self)
        known = known and type(self.leaky_relu) is LeakyReLU  # whose slope the scores know
        # DGL's refuses vertices without in-edges.
        if not known or not (self._allow_zero_in_degree or (graph.in_degrees() > 0).all()):
            return super().forward(graph, feat, get_attention)
        x, own = map(self.feat_drop, feat) if isinstance(feat, tuple) else [self.feat_drop(feat)] * 2
        shape = self._num_heads, self._out_feats
        ends = self.fc_src(x).unflatten(-1, shape), self.fc_dst(own).unflatten(-1, shape)
        scores, sums = graph.scored(*ends, self.attn[0], self.leaky_relu.negative_slope)
        out = sums(self.attn_drop(edge_softmax(graph, scores.unsqueeze(2))).squeeze(2))
        if self.res_fc is not None:
            out = out + self.res_fc(own).unflatten(-1, (-1, self._out_feats))
        return self.activation(out) if self.activation else out

    def __repr__(self) -> str:
        how = "messages, for it has hooks of its parts" if hooked(self) else "no row for each edge"
        return f"{super().__repr__()}: {how}"
