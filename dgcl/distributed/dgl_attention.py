"""Attention layers of DGL in a distributed model whose messages have rows of edges x heads x width: none here.

DGL's ``GATConv`` and ``DotGatConv`` have no such rows by themselves, and stay as they are.

Called by `distribute`. Free to change while a model as it is gives the results of one device
(`tests/dgcl/`).
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
