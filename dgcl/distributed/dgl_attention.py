"""Attention layers of DGL in a distributed model whose messages have rows of edges x heads x width: none here.

DGL's ``GATConv`` and ``DotGatConv`` have no such rows by themselves, and stay as they are.
"""

from typing import Any

import dgl.nn as dnn
from dgl.nn.functional import edge_softmax

from dgcl.distributed.attention import hooked
from dgcl.distributed.rank_graph import RankGraph


class GATv2Conv(dnn.GATv2Conv):  # type: ignore[misc]  # DGL has no type stubs
    """DGL's layer, which makes scores of both ends' rows, and sums rows, as it reads them."""

    def forward(self, graph: Any, feat: Any, get_attention: bool = False) -> Any:
        """As DGL's. Collective on a rank's graph."""
        layer: Any = self
        known = type(graph) is RankGraph and not get_attention and not hooked(layer)
        if not known or not (layer._allow_zero_in_degree or (graph.in_degrees() > 0).all()):
            return super().forward(graph, feat, get_attention)
        x, own = map(layer.feat_drop, feat) if isinstance(feat, tuple) else [layer.feat_drop(feat)] * 2
        shape = layer._num_heads, layer._out_feats
        ends = layer.fc_src(x).unflatten(-1, shape), layer.fc_dst(own).unflatten(-1, shape)
        scores, sums = graph.scored(*ends, layer.attn[0], layer.leaky_relu.negative_slope)
        out = sums(layer.attn_drop(edge_softmax(graph, scores.unsqueeze(2))).squeeze(2))
        if layer.res_fc is not None:
            out = out + layer.res_fc(own).unflatten(-1, (-1, layer._out_feats))
        return layer.activation(out) if layer.activation else out

    def __repr__(self) -> str:
        how = "messages, for it has hooks of its parts" if hooked(self) else "no row for each edge"
        return f"{super().__repr__()}: {how}"


#: By DGL's classes those that take their places.
ATTENTION = {dnn.GATv2Conv: GATv2Conv}
