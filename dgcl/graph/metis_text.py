"""Reads METIS graph files: a header, then for each vertex a line with its neighbours.

There is no mark of the format: a file is METIS if all lines agree with the header, else `NotMetisError` is raised.
Called by `graph_files`. Free to change while every form of header is read, files whose lines disagree with it are left
to be edge lists, and a wrong number of edges is named (`tests/dgcl/graph/test_metis_text.py`).
"""

import os
from array import array
from itertools import islice

import numpy as np

from dgcl.graph.build_csr import graph_from_csr, is_symmetric
from dgcl.graph.csr import Graph
from dgcl.graph.edge_text import read_lines, shown_line


class NotMetisError(ValueError):
    """A file is no METIS graph, whatever else it may be."""


def read_metis(path: str | os.PathLike[str]) -> Graph:
    """Read a METIS graph: line v, from 1, has the neighbours of vertex v - 1, each an edge from it.

    The header is ``vertices edges [fmt [ncon]]``. Digits of fmt say what else lines have: the vertex's size,
    ``ncon`` weights of it, and a weight behind each neighbour; none of these is read. Each edge is in the lines of
    both its ends, a self loop once or twice in its own. A line that begins with ``%`` is a comment; a blank one is a
    vertex without edges. Edge ids count neighbours.

    Raises:
        NotMetisError: lines are not what the header says.
        ValueError: they are, but for the number of edges.
        OSError: the file cannot be read.
    """
    name, starts, neighbours = os.fspath(path), array("q", [0]), array("q")
    with read_lines(path) as lines:
        kept = (each for each in lines if each.lstrip()[:1] != "%")
        line = next(filter(str.strip, kept), "")
        try:
            counts = [*map(int, line.split())]
            num_nodes, num_edges, form, num_weights = counts + [0, 1][len(counts) - 2 :]
            first, step = form // 100 + form // 10 % 10 * num_weights, 1 + form % 10
            for line in islice(kept, num_nodes):
                words = line.split()
                ids = [*map(int, words[first::step])]
                outside = ids and not 0 < min(ids) <= max(ids) <= num_nodes
                if outside or len(words) != first + step * len(ids):
                    raise ValueError
                neighbours.extend(ids)
                starts.append(len(neighbours))
            if len(starts) <= num_nodes or any(map(str.strip, kept)) or not neighbours:
                raise ValueError
        except ValueError:
            raise NotMetisError(
                f"{name}: expected a line 'vertices edges [fmt [ncon]]', then one for each vertex: what fmt says, and"
                f" neighbours from 1 (at vertex {len(starts)}: {shown_line(line)})"
            ) from None
    heads, tails = np.array(neighbours) - 1, np.repeat(np.arange(num_nodes), np.diff(starts))
    if not is_symmetric(tails, heads, num_nodes):
        raise NotMetisError(f"{name}: each edge must be in the lines of both its ends")
    if 2 * num_edges not in (len(heads), len(heads) + np.count_nonzero(heads == tails)):
        raise ValueError(
            f"{name}: promises {num_edges} edges, each in two lines, but names {len(heads)} neighbours; a list of edges"
            " is read by format='edges' (--format edges)"
        )
    return graph_from_csr(starts, heads, num_nodes)
