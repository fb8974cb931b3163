"""dgcl.dispatch: put together again, what the ranks got is what rank 0 had, and what is open is asked for."""

import logging
from typing import Any

import pytest
import torch

import dgcl
from dgcl.communicator import Communicator

torch_data = pytest.importorskip("torch_geometric.data")
T = pytest.importorskip("torch_geometric.transforms")
N, E, CITES = 40, 170, ("paper", "cites", "paper")


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
    data[CITES].edge_index = torch.randint(0, N, (2, 90), generator=draw)
    data["author", "knows", "author"].edge_index = torch.zeros(2, 0).long()
    return data


def current() -> Communicator:
    return dgcl.current_communicator()


def equal(one: Any, other: Any) -> bool:
    return bool((one == other).all()) if isinstance(one, torch.Tensor) else one == other


def check_back(back: Any, whole: Any):
    for store, expected in zip(back.stores, whole.stores, strict=True):
        values = dict(store.items())
        assert values.pop("num_nodes", N) in (N, 17, 6)
        assert "out" not in values or torch.equal(values.pop("out"), 2 * expected.x)
        assert values.keys() == {*expected.keys()}
        assert all(equal(values[name], value) for name, value in expected.items())


@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("given_on", ["rank 0", "all"])
def test_data_is_divided_by_vertices_and_edges_and_comes_back(world_size: int, given_on: str, caplog):
    whole = homogeneous()

    def run(rank: int) -> Any:
        data = dgcl.dispatch(whole if given_on == "all" or rank == 0 else None)
        comm, mine = current(), torch.from_numpy(current().local.edge_ids)
        ids = torch.cat([comm.owned_ids, comm.halo_ids])
        assert torch.equal(ids[data.edge_index], whole.edge_index[:, mine])
        assert (data.edge_index[1] < comm.num_owned).all()
        for name, value in data.items():
            rows = {"x": comm.owned_ids, "y": comm.owned_ids, "train_mask": comm.owned_ids, "edge_attr": mine}
            if name not in ("edge_index", "num_nodes"):
                assert equal(value, whole[name][rows[name]] if name in rows else whole[name])
        data.out, data.train_mask = 2 * data.x, data.train_mask.clone()
        return dgcl.collect(data, world_size - 1)

    with caplog.at_level(logging.WARNING, "dgcl"):
        *others, back = dgcl.launch(_on_rank, world_size, run)
    assert not any(others)
    check_back(back, whole)
    (record,) = (each for each in caplog.records if "stay whole" in each.message)
    assert "train_idx, edge_label_index, edge_label stay whole" in record.message


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_every_type_of_edges_has_an_exchange_of_its_own(world_size: int):
    whole = heterogeneous()

    def run(rank: int):
        data = dgcl.dispatch(whole if rank == 0 else None)
        comm = current()
        numbers = {name: torch.from_numpy(comm._vertices(name)[0]) for name in whole.node_types}
        for edge_type in whole.edge_types:
            source, name, head = edge_type
            sources, heads = data[edge_type].edge_index
            ids = comm.expand(numbers[source], "__".join(edge_type))
            assert torch.equal(comm.expand(data[source].x, "__".join(edge_type)), whole[source].x[ids])
            columns = torch.cat(comm.control.exchange(torch.stack([ids[sources], numbers[head][heads]])), 1)
            assert sorted(columns.t().tolist()) == sorted(whole[edge_type].edge_index.t().tolist()), name
        back = comm.collect({name: data[name].x for name in whole.node_types}, None)
        assert all(torch.equal(back[name], whole[name].x) for name in whole.node_types)
        ids = torch.tensor([16, 0, 0])[rank % 2 :]
        assert torch.equal(dgcl.fetch(data["author"].x, ids, node_type="author"), whole["author"].x[ids])
        data["paper"].out = 2 * data["paper"].x
        check_back(dgcl.collect(data, None), whole)

    dgcl.launch(_on_rank, world_size, run)


def collect_papers(data: Any) -> Any:
    return dgcl.collect({"paper": data["paper"].x})


def fetch_a_paper(data: Any, which: int = 0, node_type: str = "paper") -> Any:
    return dgcl.fetch(data["paper"].x, torch.tensor([which]), node_type=node_type)


def collect_changed(data: Any, key: Any = "paper", **values: Any) -> Any:
    data[key].update(values)
    return dgcl.collect(data)


@pytest.mark.parametrize(
    "right, wrong, words",
    [
        (
            collect_papers,
            lambda data: dgcl.collect({"paper": data["paper"].x, "book": None}),
            "rows must be by type of vertices, .*'book'",
        ),
        (collect_papers, lambda _: dgcl.collect({}), "types of rows must be the same on every rank"),
        (fetch_a_paper, lambda data: fetch_a_paper(data, 0, "book"), "node_type must be one of .*'book'"),
        (fetch_a_paper, lambda data: fetch_a_paper(data, N), r"ids must lie in \[0, 40\)"),
        (dgcl.collect, lambda data: dgcl.collect(data, file="a.npy"), "file must be None"),
        (dgcl.collect, lambda data: collect_changed(data, more=1), "data.more must"),
        (dgcl.collect, lambda data: collect_changed(data, x=data["paper"].x[1:]), "data.x must"),
        (
            dgcl.collect,
            lambda data: collect_changed(data, CITES, edge_index=data[CITES].edge_index.clone()),
            "data.edge_index must .* as it came",
        ),
    ],
)
def test_what_is_wrong_on_one_rank_is_an_error_on_all(right: Any, wrong: Any, words: str):
    def run(rank: int):
        data = dgcl.dispatch(heterogeneous())
        with pytest.raises(ValueError, match=words):
            (wrong if rank == 1 else right)(data)

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
    "not there": (square, {"vertices": ["yy"]}, r"must name tensors of data \(got yy\)"),
    "list": (lambda: square(y=["a"] * 6), {"vertices": ["y"]}, "data.y must be a tensor"),
    "adj_t": (lambda: torch_data.Data(x=torch.zeros(3, 1), adj_t=torch.eye(3).to_sparse_csr()), {}, "adj_t"),
    "none": (lambda: None, {}, r"data must be given on rank 0 \(got None there\)"),
    "types and cover": (heterogeneous, {"strategy": "cover"}, "strategy='halo'"),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_divided_is_an_error_on_every_rank(case: str):
    make, options, words = WRONG[case]

    def run(rank: int):
        with pytest.raises((ValueError, TypeError), match=words):
            dgcl.dispatch(make() if rank == 0 else None, **options)

    dgcl.launch(_on_rank, 2, run)


def test_what_is_open_is_what_it_is_named():
    def run(rank: int) -> list[int]:
        whole, part = square(y=torch.arange(6), w=torch.arange(6)), torch.arange(6) // 3
        data = dgcl.dispatch(whole, vertices=["y"], edges=["w"], part=part)
        check_back(dgcl.collect(data, None), whole)
        data.z = data.y
        with pytest.raises(ValueError, match=r"data.z must .*\(got vertices or edges"):
            dgcl.collect(data)
        return [len(data.y), len(data.w), current().num_owned, data.edge_index.shape[1]]

    assert all(a == c and b == d for a, b, c, d in dgcl.launch(_on_rank, 2, run))


def test_rows_of_edges_that_are_given_as_those_of_vertices():
    def run(rank: int):
        data = homogeneous()
        part = dgcl.dispatch(data)
        with pytest.raises(TypeError, match=r"use what dgcl\.dispatch gave as it is"):
            dgcl.dispatch(part)
        with pytest.raises(ValueError, match="rows of this rank already"):
            dgcl.dispatch_features(part.x)
        with pytest.raises(ValueError, match=r"rows of edges: hand them out with comm.dispatch_edges"):
            dgcl.dispatch_features(data.edge_attr)
        dgcl.build_comm_info(data)
        with pytest.raises(ValueError, match="data must be what"):
            dgcl.collect(data)

    dgcl.launch(_on_rank, 2, run)


def test_what_needs_all_vertices_is_refused():
    def run(rank: int):
        data = dgcl.dispatch(homogeneous())
        assert T.AddSelfLoops()(data).num_edges == data.num_edges + data.num_nodes
        connected = T.LargestConnectedComponents()
        for change in (
            connected,
            T.Compose([T.NormalizeFeatures()]),
            lambda own: own.subgraph(own.train_mask),
        ):
            with pytest.raises(ValueError, match=r"needs all vertices and edges.*before dgcl\.dispatch"):
                change(data)
        connected(dgcl.collect(data, None))

    dgcl.launch(_on_rank, 2, run)


def _on_rank(run: Any) -> Any:
    from dgcl.ranks.context import context

    return run(context.require_control().rank)
