"""Graphs of DGL, PyG, networkx, scipy and torch: the documented vertices, edges and edge order of each."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgcl.graph import as_graph
from dgcl.graph.sources import networkx_nodes
from tests.support.graphs import edge_indices, edge_list
from tests.support.samples import named

EDGES = np.array([[3, 0, 1, 0, 1, 3, 0, 2], [1, 1, 1, 2, 2, 1, 0, 2]])  # a double edge 3->1, loops at 0, 1, 2
NUM_NODES = 5  # vertex 4 is isolated


def pairs(edges: np.ndarray) -> list[tuple[int, int]]:
    return [(u, v) for u, v in edges.T.tolist()]


def by_source(edges: np.ndarray) -> np.ndarray:
    return edges[:, np.argsort(edges[0], kind="stable")]


def by_destination(edges: np.ndarray) -> np.ndarray:
    return edges[:, np.argsort(edges[1], kind="stable")]


class TestTensors:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
    def test_edge_index(self, dtype: torch.dtype):
        graph = as_graph(torch.tensor(EDGES).to(dtype), num_nodes=NUM_NODES)
        assert edge_list(graph) == pairs(EDGES)

    def test_empty_edge_index_of_any_type(self):
        assert as_graph(torch.empty(2, 0), num_nodes=3).num_edges == 0

    def test_two_tensors_in_a_list(self):
        assert edge_list(as_graph(list(torch.tensor(EDGES)))) == pairs(EDGES)

    def test_csr_of_tensors(self):
        assert edge_list(as_graph((torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1])))) == [
            (0, 1),
            (1, 0),
            (1, 1),
        ]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
    def test_dtypes_that_hold_no_ids(self, dtype: torch.dtype):
        with pytest.raises(TypeError, match="edge_index must hold integers"):
            as_graph(torch.zeros((2, 3)).to(dtype), num_nodes=3)

    def test_a_mask_is_not_lost(self):
        with pytest.raises(TypeError, match="edge_index must not be a masked array"):
            as_graph(np.ma.masked_array(EDGES, mask=EDGES == 1), num_nodes=NUM_NODES)

    @pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
    def test_sparse_coo_keeps_duplicates_and_order(self):
        zeros = torch.zeros(EDGES.shape[1])
        graph = as_graph(torch.sparse_coo_tensor(torch.tensor(EDGES), zeros, (NUM_NODES, NUM_NODES)))
        assert graph.num_nodes == NUM_NODES
        assert edge_list(graph) == pairs(EDGES)

    @pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
    @named(
        "layout, order",
        {"csr": (torch.sparse_csr, by_source), "csc": (torch.sparse_csc, by_destination)},
    )
    def test_sparse_rows_keep_stored_entries(self, layout: torch.layout, order: Any):
        dense = torch.zeros(NUM_NODES, NUM_NODES)
        dense[EDGES[0], EDGES[1]] = 1
        distinct = np.stack(np.nonzero(dense.numpy()))
        assert edge_list(as_graph(dense.to_sparse(layout=layout))) == pairs(order(distinct))

    def test_sparse_matrix_must_be_square(self):
        with pytest.raises(ValueError, match=r"square.*\(2, 3\)"):
            as_graph(torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1), (2, 3)))


class TestScipy:
    @pytest.mark.parametrize("cls", [sp.coo_array, sp.coo_matrix])
    def test_coo_keeps_duplicates_and_zeros_in_order(self, cls: Any):
        weights = np.arange(EDGES.shape[1])  # the first entry is an explicit zero
        graph = as_graph(cls((weights, (EDGES[0], EDGES[1])), shape=(NUM_NODES, NUM_NODES)))
        assert graph.num_nodes == NUM_NODES
        assert edge_list(graph) == pairs(EDGES)

    @pytest.mark.parametrize("form", ["csr", "csc", "lil", "dok", "dia", "bsr"])
    @pytest.mark.parametrize("kind", ["array", "matrix"])
    def test_edge_ids_count_entries(self, form: str, kind: str):
        """Whatever the format, weights given in the order of the entries reach the right edges."""
        dense = np.zeros((NUM_NODES, NUM_NODES), int)
        dense[EDGES[0], EDGES[1]] = 10 * EDGES[0] + EDGES[1] + 1
        matrix = getattr(sp, f"{form}_{kind}")(dense)
        graph = as_graph(matrix)
        weights = matrix.data if form in ("csr", "csc") else matrix.tocoo().data
        assert [10 * u + v + 1 for u, v in edge_list(graph)] == weights[weights != 0].tolist()
        assert graph.num_edges == np.count_nonzero(dense)

    @pytest.mark.parametrize("form", ["csr", "csc"])
    def test_entries_are_not_summed_or_sorted(self, form: str):
        matrix = getattr(sp, f"{form}_array")(
            (np.array([1.0, 0.0, 2.0]), np.array([1, 0, 1]), np.array([0, 3, 3])), shape=(2, 2)
        )
        expected = [(0, 1), (0, 0), (0, 1)]
        assert edge_list(as_graph(matrix)) == [(u, v) if form == "csr" else (v, u) for u, v in expected]

    def test_blocks_of_bsr_are_not_all_edges(self):
        matrix = sp.bsr_array((np.array([[[0, 7], [0, 8]]]), np.array([0]), np.array([0, 1])), shape=(2, 2))
        assert edge_list(as_graph(matrix)) == [(0, 1), (1, 1)]

    @named(
        "matrix, message",
        {
            "rectangle": (sp.csr_array((2, 3)), r"square.*\(2, 3\)"),
            "vector": (sp.coo_array(np.array([0, 1])), r"square.*\(2,\)"),
            "empty": (sp.csr_array((0, 0)), "no vertices"),
        },
    )
    def test_what_is_no_graph(self, matrix: Any, message: str):
        with pytest.raises(ValueError, match=message):
            as_graph(matrix)

    def test_vertices_without_edges(self):
        assert as_graph(sp.csr_array((3, 3))).num_nodes == 3

    def test_damaged_matrix_is_refused(self):
        matrix = sp.csr_array(np.eye(3))
        matrix.indices[1] = 3
        with pytest.raises(ValueError, match="scipy csr_array: edge 1 is 1 -> 3"):
            as_graph(matrix)


NETWORKX_CLASSES = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]


class TestNetworkx:
    @given(edge_indices(), st.sampled_from(NETWORKX_CLASSES), st.randoms(use_true_random=False))
    def test_edges_are_those_of_to_directed(self, drawn: tuple[int, np.ndarray], cls: Any, random: Any):
        num_nodes, edges = drawn
        theirs = cls()
        nodes = list(range(num_nodes))
        random.shuffle(nodes)
        theirs.add_nodes_from(nodes)
        theirs.add_edges_from(pairs(edges))
        graph = as_graph(theirs)
        assert graph.num_nodes == num_nodes
        assert edge_list(graph) == [edge[:2] for edge in theirs.to_directed().edges]

    def test_undirected_edges_count_both_ways_and_loops_once(self):
        graph = as_graph(nx.Graph([(0, 1), (1, 1), (1, 2)]))
        assert edge_list(graph) == [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]

    def test_parallel_edges_stay(self):
        theirs = nx.MultiGraph()
        theirs.add_edge(0, 1, key="a")
        theirs.add_edge(0, 1, key="b")
        assert edge_list(as_graph(theirs)) == [(0, 1), (0, 1), (1, 0), (1, 0)]

    @named(
        "edges, nodes, expected",
        {
            "0..n-1-in-any-order": ([(2, 0), (0, 1)], [0, 1, 2], [(2, 0), (0, 1)]),
            "names": ([("c", "a"), ("a", "b")], ["c", "a", "b"], [(0, 1), (1, 2)]),
            "other-integers": ([(7, 3), (3, 5)], [7, 3, 5], [(0, 1), (1, 2)]),
            "objects": ([(0.5, "x"), ("x", (1,))], [0.5, "x", (1,)], [(0, 1), (1, 2)]),
        },
    )
    def test_ids_of_nodes(self, edges: Any, nodes: Any, expected: Any):
        theirs = nx.DiGraph(edges)
        assert networkx_nodes(theirs) == nodes
        assert sorted(edge_list(as_graph(theirs))) == sorted(expected)

    @pytest.mark.parametrize("cls", NETWORKX_CLASSES)
    def test_no_vertices(self, cls: Any):
        with pytest.raises(ValueError, match=f"{cls.__name__} has no vertices"):
            as_graph(cls())

    def test_views(self):
        theirs = nx.path_graph(4, create_using=nx.DiGraph)
        assert edge_list(as_graph(theirs.reverse(copy=False))) == [(1, 0), (2, 1), (3, 2)]
        assert as_graph(theirs.subgraph([1, 2])).num_edges == 1


class TestDgl:
    @pytest.mark.parametrize("formats", [["coo"], ["csr"], ["csc"], ["coo", "csr", "csc"]], ids="-".join)
    @pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
    def test_edges_in_order_of_dgls_ids(self, formats: list[str], idtype: torch.dtype):
        dgl = pytest.importorskip("dgl")
        theirs = dgl.graph(
            (torch.tensor(EDGES[0]), torch.tensor(EDGES[1])), num_nodes=NUM_NODES, idtype=idtype
        )
        theirs = theirs.formats(formats)
        before = theirs.formats()
        graph = as_graph(theirs)
        assert graph.num_nodes == NUM_NODES
        assert edge_list(graph) == pairs(EDGES)
        assert theirs.formats() == before

    def test_graph_made_from_csc_with_edge_ids(self):
        dgl = pytest.importorskip("dgl")
        ids = torch.tensor([2, 1, 0])
        theirs = dgl.graph(("csc", (torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0]), ids)))
        assert edge_list(as_graph(theirs)) == [(0, 1), (2, 0), (1, 0)]

    def test_heterogeneous_graphs_and_blocks(self):
        dgl = pytest.importorskip("dgl")
        graph = as_graph(dgl.heterograph({("user", "buys", "thing"): ([0], [1])}))
        assert (edge_list(graph), graph.node_types) == ([(2, 1)], {"thing": (0, 2), "user": (2, 1)})
        with pytest.raises(TypeError, match="block"):
            as_graph(dgl.to_block(dgl.graph(([0], [1]))))

    def test_no_vertices_and_no_edges(self):
        dgl = pytest.importorskip("dgl")
        with pytest.raises(ValueError, match="DGLGraph has no vertices"):
            as_graph(dgl.graph(([], [])))
        assert as_graph(dgl.graph(([], []), num_nodes=3)).num_nodes == 3

    def test_num_nodes_must_agree(self):
        dgl = pytest.importorskip("dgl")
        with pytest.raises(ValueError, match="DGLGraph has 2 vertices, but num_nodes is 3"):
            as_graph(dgl.graph(([0], [1])), num_nodes=3)


class TestPyg:
    def test_edge_index_and_num_nodes(self):
        data = pytest.importorskip("torch_geometric.data")
        graph = as_graph(data.Data(edge_index=torch.tensor(EDGES), num_nodes=NUM_NODES))
        assert graph.num_nodes == NUM_NODES
        assert edge_list(graph) == pairs(EDGES)

    def test_num_nodes_of_the_features(self):
        data = pytest.importorskip("torch_geometric.data")
        assert as_graph(data.Data(x=torch.zeros(9, 2), edge_index=torch.tensor(EDGES))).num_nodes == 9

    def test_num_nodes_of_an_edge_index(self):
        pyg = pytest.importorskip("torch_geometric")
        edges = torch.tensor(EDGES)
        assert as_graph(pyg.EdgeIndex(edges, sparse_size=(7, 7))).num_nodes == 7
        assert as_graph(pyg.EdgeIndex(edges)).num_nodes == 4
        assert edge_list(as_graph(pyg.EdgeIndex(edges))) == pairs(EDGES)

    def test_num_nodes_that_nothing_tells(self):
        data = pytest.importorskip("torch_geometric.data")
        theirs = data.Data(edge_index=torch.tensor(EDGES))
        assert as_graph(theirs).num_nodes == 4
        assert as_graph(theirs, num_nodes=7).num_nodes == 7

    def test_num_nodes_that_is_too_small(self):
        data = pytest.importorskip("torch_geometric.data")
        with pytest.raises(
            ValueError, match=r"PyG Data: edge_index: edge 0 is 3 -> 1, but the graph has 3 vertices"
        ):
            as_graph(data.Data(x=torch.zeros(3, 2), edge_index=torch.tensor(EDGES)))

    @pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
    def test_transposed_adjacency(self):
        data = pytest.importorskip("torch_geometric.data")
        adj_t = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]).to_sparse_csr()
        assert edge_list(as_graph(data.Data(adj_t=adj_t))) == [(1, 0), (2, 0), (0, 2)]

    def test_what_is_no_homogeneous_graph(self):
        data = pytest.importorskip("torch_geometric.data")
        with pytest.raises(ValueError, match="must be an integer from 1"):
            as_graph(data.HeteroData())
        with pytest.raises(ValueError, match=r"edge_index or adj_t \(got the keys \['x'\]\)"):
            as_graph(data.Data(x=torch.zeros(2, 2)))
