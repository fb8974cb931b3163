"""dgcl.dispatch: put together again, what the ranks got is what rank 0 had, and what is open is asked for."""

import logging
from typing import Any

import pytest
import torch

import dgcl
from dgcl.communicator import Communicator

torch_data = pytest.importorskip("torch_geometric.data")
N, E = 40, 170


def homogeneous() -> Any:
    """Edges of 32-bit ids, a vertex without edges, and one value of each kind."""
    draw = torch.Generator().manual_seed(3)
    return torch_data.Data(
        x=torch.randn(N, 4, generator=draw),
        edge_index=torch.randint(0, N - 1, (2, E), generator=draw).int(),
        edge_attr=torch.randn(E, 2, generator=draw),
        y=torch.arange(N) % 3,
        train_mask=torch.rand(N, generator=draw) < 0.5,
        train_idx=torch.tensor([3, 1]),
        edge_label_index=torch.randint(0, N, (2, E), generator=draw),
        edge_label=torch.arange(E),
        name="mesh",
    )


def heterogeneous() -> Any:
    draw = torch.Generator().manual_seed(4)
    data = torch_data.HeteroData(year=2024)
    data["paper"].x, data["paper"].y = torch.randn(N, 4, generator=draw), torch.arange(N) % 3
    data["author"].x = torch.randn(17, 3, generator=draw)
    ends = torch.stack(
        [torch.randint(0, 17, (E,), generator=draw), torch.randint(0, N, (E,), generator=draw)]
    )
    data["author", "writes", "paper"].edge_index = ends
    data["paper", "written by", "author"].edge_index = ends.flip(0)
    data["paper", "written by", "author"].edge_attr = torch.randn(E, 2, generator=draw)
    data["paper", "cites", "paper"].edge_index = torch.randint(0, N, (2, 90), generator=draw)
    data["author", "knows", "author"].edge_index = torch.zeros(2, 0).long()
    return data


def current() -> Communicator:
    return dgcl.current_communicator()


@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("given_on", ["rank 0", "all"])
def test_data_is_divided_by_vertices_and_edges(world_size: int, given_on: str, caplog):
    whole = homogeneous()

    def run(rank: int) -> Any:
        data = dgcl.dispatch(whole if given_on == "all" or rank == 0 else None)
        comm = current()
        assert (data.num_nodes, data.name) == (comm.num_owned, "mesh")
        for name in ("train_idx", "edge_label_index", "edge_label"):
            assert torch.equal(data[name], whole[name])
        ids = torch.cat([comm.owned_ids, comm.halo_ids])
        sources, heads = ids[data.edge_index]
        assert (data.edge_index[1] < comm.num_owned).all()
        columns = comm.collect_edges(torch.stack([sources, heads], 1), None)
        names = ("x", "y", "train_mask")
        return columns, comm.collect_edges(data.edge_attr, None), [dgcl.collect(data[n], None) for n in names]

    with caplog.at_level(logging.WARNING, "dgcl"):
        results = dgcl.launch(_on_rank, world_size, run)
    for columns, edge_attr, rows in results:
        assert torch.equal(columns.t(), whole.edge_index.long())
        assert torch.equal(edge_attr, whole.edge_attr)
        assert all(map(torch.equal, rows, (whole.x, whole.y, whole.train_mask)))
    (record,) = (each for each in caplog.records if "stay whole" in each.message)
    assert "train_idx, edge_label_index, edge_label stay whole" in record.message


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_every_type_of_edges_has_an_exchange_of_its_own(world_size: int):
    whole = heterogeneous()

    def run(rank: int) -> None:
        data = dgcl.dispatch(whole if rank == 0 else None)
        comm = current()
        assert data.year == 2024
        assert data["paper"].num_nodes == len(data["paper"].x)
        numbers = {name: comm._vertices(name)[0] for name in whole.node_types}  # ids within the type
        for edge_type in whole.edge_types:
            source, name, head = edge_type
            sources, heads = data[edge_type].edge_index
            rows = comm.expand(data[source].x, "__".join(edge_type))
            ids = comm.expand(torch.from_numpy(numbers[source]), "__".join(edge_type))
            assert torch.equal(rows, whole[source].x[ids])
            mine = torch.stack([ids[sources], torch.from_numpy(numbers[head])[heads]])
            if "edge_attr" in whole[edge_type]:
                mine = torch.cat([mine, data[edge_type].edge_attr.t()])
            columns = torch.cat(comm.control.exchange(mine), 1)
            expected = whole[edge_type].edge_index
            if "edge_attr" in whole[edge_type]:
                expected = torch.cat([expected, whole[edge_type].edge_attr.t()])
            assert sorted(columns.t().tolist()) == sorted(expected.t().tolist()), name
        back = comm.collect({name: data[name].x for name in whole.node_types}, None)
        assert all(torch.equal(back[name], whole[name].x) for name in whole.node_types)
        ids = torch.tensor([16, 0, 0])[rank % 2 :]
        assert torch.equal(dgcl.fetch(data["author"].x, ids, node_type="author"), whole["author"].x[ids])

    dgcl.launch(_on_rank, world_size, run)


def collect_papers(x: Any) -> Any:
    return dgcl.collect({"paper": x})


def fetch_a_paper(x: Any) -> Any:
    return dgcl.fetch(x, torch.tensor([0]), node_type="paper")


@pytest.mark.parametrize(
    "right, wrong, words",
    [
        (
            collect_papers,
            lambda x: dgcl.collect({"paper": x, "book": x}),
            "rows must be by type of vertices, .*'book'",
        ),
        (collect_papers, lambda x: dgcl.collect({}), "rows must be of the same types in the same order"),
        (
            fetch_a_paper,
            lambda x: dgcl.fetch(x, torch.tensor([0]), node_type="book"),
            "node_type must be one of .*'book'",
        ),
        (
            fetch_a_paper,
            lambda x: dgcl.fetch(x, torch.tensor([N]), node_type="paper"),
            r"ids must lie in \[0, 40\)",
        ),
    ],
)
def test_a_wrong_type_on_one_rank_is_an_error_on_all(right: Any, wrong: Any, words: str):
    def run(rank: int) -> None:
        x = dgcl.dispatch(heterogeneous())["paper"].x
        call = wrong if rank == 1 else right
        with pytest.raises(ValueError, match=words):
            call(x)

    dgcl.launch(_on_rank, 2, run)


def square(**more: Any) -> Any:
    """As many edges as vertices."""
    ring = torch.stack([torch.arange(6), torch.arange(6).roll(1)])
    return torch_data.Data(x=torch.zeros(6, 2), edge_index=ring, edge_attr=torch.zeros(6, 1), **more)


WRONG = {
    "open": (
        lambda: square(y=torch.zeros(6)),
        {},
        r"data.y has 6 rows.*6 vertices and 6 edges.*vertices=\[\.\.\.\]",
    ),
    "asked, and cannot be": (
        homogeneous,
        {"edges": ["y"]},
        "data.y has 40 rows, and there are 40 vertices and 170 edges",
    ),
    "list": (lambda: square(y=["a"] * 6), {"vertices": ["y"]}, "data.y must be a tensor"),
    "adj_t": (lambda: torch_data.Data(x=torch.zeros(3, 1), adj_t=torch.eye(3).to_sparse_csr()), {}, "adj_t"),
    "none": (lambda: None, {}, r"data must be given on rank 0 \(got None there\)"),
    "types and cover": (heterogeneous, {"edges": "cover"}, "edges"),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_divided_is_an_error_on_every_rank(case: str):
    make, options, words = WRONG[case]

    def run(rank: int) -> None:
        with pytest.raises((ValueError, TypeError), match=words):
            dgcl.dispatch(make() if rank == 0 else None, **options)

    dgcl.launch(_on_rank, 2, run)


def test_what_is_open_is_what_it_is_named():
    def run(rank: int) -> list[int]:
        data = dgcl.dispatch(square(y=torch.arange(6), w=torch.arange(6)), vertices=["y"], edges=["w"])
        return [len(data.y), len(data.w), current().num_owned, data.edge_index.shape[1]]

    assert all(a == c and b == d for a, b, c, d in dgcl.launch(_on_rank, 2, run))


def test_rows_of_edges_that_are_given_as_those_of_vertices():
    def run(rank: int) -> None:
        data = homogeneous()
        dgcl.dispatch(data)
        with pytest.raises(ValueError, match=r"rows of edges: hand them out with comm.dispatch_edges"):
            dgcl.dispatch_features(data.edge_attr)

    dgcl.launch(_on_rank, 2, run)


def _on_rank(run: Any) -> Any:
    from dgcl.ranks.context import context

    return run(context.require_control().rank)
