"""dgcl.dispatch: put together again, what the ranks got is what rank 0 had, and what is open is asked for."""

from typing import Any

import pytest
import torch

import dgcl
from dgcl.communicator import Communicator

torch_data = pytest.importorskip("torch_geometric.data")
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
def test_data_shows_all_rows_and_comes_back(world_size: int, given_on: str):
    whole = homogeneous()

    def run(rank: int):
        data = dgcl.dispatch(whole if given_on == "all" or rank == 0 else None)
        comm, mine = current(), torch.from_numpy(current().local.edge_ids)
        assert data.num_nodes == N
        assert data.edge_index.shape == (2, E)
        own = {"x": comm.owned_ids, "y": comm.owned_ids, "train_mask": comm.owned_ids, "edge_attr": mine}
        for name, ids in own.items():
            assert equal(dgcl.local(data[name]), whole[name][ids])
        data.out, data.train_mask = 2 * data.x, data.train_mask.clone()
        back = dgcl.collect(data)
        check_back(back, whole)

    dgcl.launch(_on_rank, world_size, run)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_types_show_all_rows_and_come_back(world_size: int):
    whole = heterogeneous()

    def run(rank: int):
        data = dgcl.dispatch(whole if rank == 0 else None)
        comm = current()
        for edge_type in whole.edge_types:
            source, _, target = edge_type
            sources, targets = dgcl.local(data[edge_type].edge_index)
            ids = comm.expand(torch.from_numpy(comm._vertices(source)[0]), "__".join(edge_type))
            ends = torch.stack([ids[sources], torch.from_numpy(comm._vertices(target)[0])[targets]])
            columns = torch.cat(comm.control.exchange(ends), 1)
            assert sorted(columns.t().tolist()) == sorted(whole[edge_type].edge_index.t().tolist())
        data["paper"].out = 2 * data["paper"].x
        check_back(dgcl.collect(data), whole)

    dgcl.launch(_on_rank, world_size, run)


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
    "adj_t": (
        lambda: torch_data.Data(x=torch.zeros(3, 1), adj_t=2 * torch.eye(3).to_sparse_csr()),
        {},
        "adj_t must",
    ),
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
        check_back(dgcl.collect(data), whole)
        own = data.y, data.w, data.x, data.edge_attr
        return [len(dgcl.local(each)) for each in own]

    assert all(a == c and b == d for a, b, c, d in dgcl.launch(_on_rank, 2, run))


def test_what_was_dispatched_is_refused():
    def run(rank: int):
        part = dgcl.dispatch(homogeneous())
        with pytest.raises(TypeError, match=r"use what dgcl\.dispatch gave as it is"):
            dgcl.dispatch(part)
        with pytest.raises(TypeError):
            dgcl.dispatch_features(part.x)

    dgcl.launch(_on_rank, 2, run)


def _on_rank(run: Any) -> Any:
    from dgcl.ranks.context import context

    return run(context.require_control().rank)
