"""The data of examples/train.py: a graph file, or a synthetic graph with planted communities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dgcl.graph import Graph, as_graph, read_graph


@dataclass
class Data:
    """A graph to train on. Only rank 0 has one."""

    name: str
    graph: Graph
    features: Tensor  # (N, F)
    labels: Tensor  # (N,) int64
    masks: Tensor  # (N, 3) bool: train, val, test
    num_classes: int


def with_self_loops(graph: Graph) -> Graph:
    """The graph with exactly one self loop at each vertex, as GCN and GAT want it."""
    sources, heads = graph.edges()
    others = sources != heads
    vertices = np.arange(graph.num_nodes)
    edges = np.stack([np.append(sources[others], vertices), np.append(heads[others], vertices)])
    return as_graph(edges, num_nodes=graph.num_nodes)


def planted_communities(
    num_nodes: int = 2000, num_classes: int = 5, degree: int = 8, width: int = 32, seed: int = 0
) -> Data:
    """Vertices that read mostly others of their own class, with features that tell the class only faintly."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, num_classes, num_nodes)
    heads = np.repeat(np.arange(num_nodes), degree)
    sources = random.integers(0, num_nodes, len(heads))
    for label in range(num_classes):  # two of three edges stay inside, chance aside
        inside = (labels[heads] == label) & (random.random(len(heads)) < 0.6)
        sources[inside] = random.choice(np.flatnonzero(labels == label), inside.sum())
    edges = np.stack([np.append(sources, heads), np.append(heads, sources)])
    features = random.standard_normal((num_classes, width))[labels] + 4 * random.standard_normal(
        (num_nodes, width)
    )
    return Data(
        f"synthetic, {num_classes} planted communities",
        as_graph(edges, num_nodes=num_nodes),
        torch.from_numpy(features),
        torch.from_numpy(labels),
        _random_split(num_nodes, random),
        num_classes,
    )


def from_file(path: str, seed: int = 0) -> Data:
    """A graph file. Features, labels or a split that it does not have are made up, and the name says so."""
    found = read_graph(path)
    num_nodes = found.graph.num_nodes
    random = np.random.default_rng(seed)
    made_up = []
    if found.features is None:
        made_up.append("features")
        features = random.standard_normal((num_nodes, 64))
    else:
        features = np.asarray(found.features, np.float64)
        features = features / np.maximum(np.abs(features).sum(1, keepdims=True), 1e-12)
    if found.labels is None:
        made_up.append("labels")
        labels = random.integers(0, 8, num_nodes)
    else:
        labels = found.labels
    if {"train", "val", "test"} <= found.masks.keys():
        masks = torch.from_numpy(np.stack([found.masks[name] for name in ("train", "val", "test")], 1))
    else:
        made_up.append("split")
        masks = _random_split(num_nodes, random)
    masks &= torch.from_numpy(labels >= 0)[:, None]
    note = f" (random {', '.join(made_up)})" if made_up else ""
    return Data(
        f"{path}{note}",
        found.graph,
        torch.from_numpy(features),
        torch.from_numpy(labels.astype(np.int64)),
        masks,
        int(labels.max()) + 1,
    )


def _random_split(num_nodes: int, random: np.random.Generator) -> Tensor:
    """(N, 3): 10% of the vertices to train on, 20% to validate, the others to test."""
    order = torch.from_numpy(random.permutation(num_nodes))
    masks = torch.zeros(num_nodes, 3, dtype=torch.bool)
    bounds = [0, num_nodes // 10, num_nodes * 3 // 10, num_nodes]
    for column in range(3):
        masks[order[bounds[column] : bounds[column + 1]], column] = True
    return masks
