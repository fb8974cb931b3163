from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import dgcl
import dgcl.nn
from dgcl.autograd import operators as ops
from dgcl.communicator import Communicator
from tests.support.plans import random_world
from tests.support.rank_pool import RankPool
from tests.support.ranks import folded, join, local_ids, on_threads, same_bits
from tests.support.samples import matrix, named

LINE = random_world(21, 3, "line", num_nodes=12, num_edges=40)
RANDOM = random_world(22, 4, "random-1", num_nodes=14, num_edges=60)
ONE = random_world(23, 1, num_nodes=5, num_edges=9)
worlds = named("world", {"line": LINE, "random": RANDOM, "one rank": ONE})


def calls(comm: Communicator) -> dict[str, int]:
    """How often rows of one float64 have travelled either way, by the bytes that left this rank."""
    expand, fold = (
        comm.exchanges["halo"].program.expand.rows_sent,
        comm.exchanges["halo"].program.fold.rows_sent,
    )
    sent = comm.bytes_sent
    assert expand
    assert fold
    return {
        "expand": int(sent["expand"].sum()) // (8 * expand),
        "fold": int(sent["fold"].sum()) // (8 * fold),
    }


# Gradients against finite differences of the loss of all ranks together.


def layered(x: Tensor) -> Tensor:
    """A rank's loss after two layers, one of which is used twice."""
    wide = dgcl.graph_allgather(x.sin())
    again = dgcl.graph_allgather((wide * wide.cos())[: len(x)] + x)
    return (again * wide.exp()).sum() + dgcl.graph_allgather(x)[-1:].sum()


def total_loss(comm: Communicator, loss: Callable[[Tensor], Tensor], x: Tensor) -> float:
    return float(sum(comm.control.exchange(loss(x).item())))


def check_gradient(comm: Communicator, loss: Callable[[Tensor], Tensor], x: Tensor):
    """The gradient that a backward gives, element by element, in lockstep on all ranks."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x), x)
    for rank, elements in enumerate(comm.control.exchange(x.numel())):
        for element in range(elements):
            step = torch.zeros_like(x)
            if rank == comm.rank:
                step.view(-1)[element] = 1e-5
            up, down = (total_loss(comm, loss, x.detach() + sign * step) for sign in (1, -1))
            if rank == comm.rank:
                assert gradient.view(-1)[element].item() == pytest.approx(
                    (up - down) / 2e-5, rel=1e-6, abs=1e-7
                )


@worlds
def test_gradients_are_those_of_finite_differences(world: Any):
    def run(comm: Communicator):
        torch.manual_seed(comm.rank)
        check_gradient(comm, layered, torch.randn(comm.num_owned, 1, dtype=torch.float64))

    on_threads(world, run)


@worlds
def test_second_gradients_are_those_of_finite_differences(world: Any):
    def squared_gradient(x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.requires_grad_()
        (gradient,) = torch.autograd.grad(layered(x), x, create_graph=True)
        return gradient.square().sum()

    def run(comm: Communicator):
        torch.manual_seed(comm.rank)
        check_gradient(comm, squared_gradient, torch.randn(comm.num_owned, 1, dtype=torch.float64) / 2)

    on_threads(world, run)


@worlds
def test_expand_and_fold_are_adjoint(world: Any):
    """<expand x, y> = <x, fold y>, summed over ranks; exact, because all numbers are small integers."""

    def run(comm: Communicator) -> tuple[float, float]:
        torch.manual_seed(comm.rank)
        x = torch.randint(-9, 9, (comm.num_owned, 3)).double()
        y = torch.randint(-9, 9, (comm.num_local, 3)).double()
        return (comm.expand(x) * y).sum().item(), (x * comm.fold(y)).sum().item()

    left, right = zip(*on_threads(world, run), strict=True)
    assert sum(left) == sum(right)


@worlds
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_gradients_are_summed(world: Any, dtype: torch.dtype):
    def run(comm: Communicator):
        torch.manual_seed(comm.rank)
        whole = torch.complex(torch.randint(-9, 9, (comm.num_local, 3)).double(), torch.ones(()).double())
        for gradient in (whole.to(dtype), whole.to(dtype).conj()):
            x = torch.zeros(comm.num_owned, 3, dtype=dtype, requires_grad=True)
            (result,) = torch.autograd.grad(dgcl.graph_allgather(x), x, gradient)
            assert torch.equal(result, folded(comm, gradient.resolve_conj()))

    on_threads(world, run)


def test_a_gradient_that_cannot_be_summed_is_an_error():
    """Not silence: 8-bit floats travel, but have no sum."""

    def run(comm: Communicator):
        x = torch.zeros(comm.num_owned, 4, requires_grad=True)
        narrow = dgcl.graph_allgather(x.to(torch.float8_e4m3fn))
        with pytest.raises(TypeError, match=r"rows: torch\.float8_e4m3fn rows cannot be summed"):
            narrow.backward(torch.zeros(comm.num_local, 4).to(torch.float8_e4m3fn))

    on_threads(LINE, run)


@worlds
@named("reentrant", {"non-reentrant": False, "reentrant": True})
def test_activation_checkpointing(world: Any, reentrant: bool):
    def run(comm: Communicator):
        torch.manual_seed(comm.rank)
        x = torch.randn(comm.num_owned, 4, requires_grad=True)
        layered(x).backward()
        plain, x.grad = x.grad, None
        checkpoint(layered, x, use_reentrant=reentrant).backward()
        assert torch.equal(plain, x.grad)

    on_threads(world, run)


def test_a_result_that_is_not_used_has_no_backward():
    def run(comm: Communicator) -> dict[str, int]:
        x = torch.ones(comm.num_owned, dtype=torch.float64, requires_grad=True)
        dgcl.graph_allgather(x)
        dgcl.graph_allgather(x).sum().backward()
        return calls(comm)

    assert on_threads(RANDOM, run) == [{"expand": 2, "fold": 1}] * 4


def test_the_graph_keeps_its_communicator():
    """The caller may forget it between forward and backward."""

    def run():
        comm = join(shares)
        held = folded(comm, torch.ones(comm.num_local))
        x = torch.ones(comm.num_owned, requires_grad=True)
        y = dgcl.graph_allgather(x)
        dgcl.ranks.context.context.communicator = None
        del comm
        y.sum().backward()
        assert torch.equal(x.grad, held)

    shares = LINE.shares()
    dgcl.launch(run, 3)


@worlds
def test_operators_and_the_short_way_are_the_same(world: Any):
    """What a dispatch mode watches goes through the operators; values and gradients are those of the short way,
    also of rows that are views, and a result may be changed in place."""

    class Watch(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def run(comm: Communicator):
        base = torch.randn(2, comm.num_owned, dtype=torch.float64, requires_grad=True)
        found = []
        for watch in (nullcontext(), Watch()):
            base.grad = None
            with watch:
                rows = comm.expand(base.t())
                rows.relu_()
                (comm.fold(rows) ** 3).sum().backward()
            found.append((rows.detach(), base.grad))
            names = getattr(watch, "seen", ["dgcl.expand.default", "dgcl.fold.default"])
            assert {"dgcl.expand.default", "dgcl.fold.default"} <= set(names)
        for short, watched in zip(*found, strict=True):
            assert same_bits(short, watched)

    on_threads(world, run)


@named("verb", {"expand": ops.expand, "fold": ops.fold})
def test_what_is_not_differentiated_has_no_gradient(
    verb: Callable[[Tensor, Communicator, int], Tensor],
):
    def run(comm: Communicator):
        rows = torch.randn(comm.num_owned if verb is ops.expand else comm.num_local, 3)
        plain = verb(rows, comm, comm._number)
        rows.requires_grad_()
        assert verb(rows, comm, comm._number).requires_grad
        with torch.no_grad():
            unseen = verb(rows, comm, comm._number)
        assert not plain.requires_grad
        assert not unseen.requires_grad
        assert torch.equal(unseen, plain)

    on_threads(LINE, run)


@named("verb", {"expand": ops.expand, "fold": ops.fold})
def test_tangents_and_maps_are_refused(verb: Callable[[Tensor, Communicator, int], Tensor]):
    def run(comm: Communicator):
        rows = torch.randn(comm.num_owned, 3)
        for mapped in (lambda x: verb(x, comm, comm._number), comm.aggregator("sum")):
            with pytest.raises(NotImplementedError, match=r"torch\.func\.vmap.*rows of \(samples, F\)"):
                torch.func.vmap(mapped)(torch.stack([rows, rows]))
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
            verb(forward_ad.make_dual(rows, torch.ones_like(rows)), comm, comm._number)
        with pytest.raises(NotImplementedError, match="forward mode"):
            torch.func.jvp(lambda x: verb(x, comm, comm._number), (rows,), (torch.ones_like(rows),))
        other = torch.func.jvp(lambda x: x * verb(rows, comm, comm._number).sum(), (rows,), (rows,))
        assert other[1].equal(rows * rows.sum())  # rows without a tangent may be exchanged on the way

    on_threads(random_world(22, 1, "direct", num_nodes=5), run)


def test_functional_gradients_are_those_of_autograd():
    """First and second ones, through an exchange, an aggregation and a sum over ranks."""

    def run(comm: Communicator):
        x = torch.randn(comm.num_owned, 3, dtype=torch.float64)

        def loss(x: Tensor) -> Tensor:
            rows = comm.fold(dgcl.graph_allgather(x).sin())
            return dgcl.nn.global_sum((comm.aggregator("mean")(rows) ** 3).sum()) * 0.1 + rows.cos().sum()

        def slope(x: Tensor) -> Tensor:
            return (torch.func.grad(loss)(x) ** 2).sum()

        y = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(y), y, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), y)
        torch.testing.assert_close(torch.func.grad(loss)(x), first.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.func.grad(slope)(x), second, rtol=1e-12, atol=1e-12)

    on_threads(RANDOM, run)


def test_a_number_of_no_communicator_is_an_error():
    with pytest.raises(ValueError, match="communicator -1 no longer exists; keep a reference to it"):
        ops.expand_operator(torch.zeros(3), -1)


def test_threads_get_numbers_of_their_own():
    def run(comm: Communicator) -> int:
        return comm._number

    numbers = [number for _ in range(20) for number in on_threads(RANDOM, run)]
    assert len(set(numbers)) == len(numbers)


def test_the_operators_keep_the_rules_of_torch():
    """Schema, fake kernels and autograd registration, as torch itself checks them."""

    def run(comm: Communicator):
        number = comm._number
        for operator, num_rows in (
            (ops.expand_operator, comm.num_owned),
            (ops.fold_operator, comm.num_local),
        ):
            for x in (torch.randn(num_rows, 3), torch.randn(num_rows, 2, 2, requires_grad=True)):
                torch.library.opcheck(operator, (x, number), test_utils=OPCHECKS)

    on_threads(ONE, run)


OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


# Compiled, in processes: dynamo is not made for ranks that are threads.


def compiled(backend: str):
    """Values, gradients and the number of calls are those of eager mode."""
    comm = join(LINE.shares())
    torch.manual_seed(comm.rank)
    x = torch.randn(comm.num_owned, 1, dtype=torch.float64, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        first = dgcl.graph_allgather(x.sin())
        dgcl.graph_allgather(x)  # unused
        same, same_again = dgcl.graph_allgather(x), dgcl.graph_allgather(x)
        return (first.cos() * same).sum() + same_again.square().sum()

    step(x).backward()
    expected, x.grad = x.grad, None
    before = calls(comm)
    assert before == {"expand": 4, "fold": 3}
    fast = torch.compile(step, fullgraph=True, backend=backend)
    for run in range(1, 3):
        fast(x).backward()
        assert torch.allclose(x.grad, expected, rtol=1e-12)
        x.grad = None
        assert calls(comm) == {"expand": 4 + 4 * run, "fold": 3 + 3 * run}
    with torch.no_grad():
        fast(x)
        assert calls(comm)["expand"] == 16
    comm.close()


def compiled_with_an_idle_rank():
    """Rank 1 uses no result at all; the others depend on its calls, in their order."""
    comm = join(LINE.shares(), timeout=60.0)
    x = torch.randn(comm.num_owned, 1, dtype=torch.float64)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Tensor) -> Tensor:
        wide = dgcl.graph_allgather(x.expand(-1, 3))
        narrow = dgcl.graph_allgather(x)
        if comm.rank == 1:
            return x + 1
        return narrow.sum() - wide.sum()

    step(x)
    step(x)
    assert calls(comm) == {"expand": 8, "fold": 0}  # of rows of one float64: 2 * (3 + 1)
    comm.close()


def compiled_for_two_communicators():
    """A compiled function must not go on using the communicator that it was compiled with."""
    first, second = join(LINE.shares()), join(random_world(25, 3, "line", num_nodes=17).shares())

    @torch.compile(fullgraph=True, backend="aot_eager")
    def gather(rows: Tensor) -> Tensor:
        return dgcl.graph_allgather(rows) * 2

    @torch.compile(fullgraph=True, backend="aot_eager")
    def gather_on(rows: Tensor, comm: Communicator) -> Tensor:
        return dgcl.graph_allgather(rows, comm=comm) * 2

    third = join(LINE.shares())
    for comm in (first, second, third, first):
        dgcl.ranks.context.context.communicator = comm
        assert torch.equal(gather(comm.owned_ids), 2 * local_ids(comm))
        assert torch.equal(gather_on(comm.owned_ids, comm), 2 * local_ids(comm))
    for comm in (first, second, third):
        comm.close()


def compiled_for_many_shapes():
    """Widths and types that vary: sizes become symbols in the graph."""
    comm = join(LINE.shares())

    @torch.compile(fullgraph=True, backend="aot_eager")
    def there_and_back(rows: Tensor) -> Tensor:
        return comm.fold(dgcl.graph_allgather(rows * 1))

    held = folded(comm, torch.ones(comm.num_local, dtype=torch.int64))
    shapes = {torch.float32: [(5,), (6,), (7,), (3, 4), (0,)], torch.int64: [(), (2,)]}
    for dtype, shape in [(some, shape) for some in shapes for shape in shapes[some]]:
        rows = torch.ones(comm.num_owned, *shape, dtype=dtype)
        expected = held.to(dtype).view(-1, *[1] * len(shape)).expand_as(rows)
        assert torch.equal(there_and_back(rows), expected)
    comm.close()


Pools = Callable[[int], RankPool]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", matrix("inductor")])
def test_compiled_calls_are_neither_dropped_nor_merged(rank_pool: Pools, backend: str):
    rank_pool(3).run(compiled, backend)


@pytest.mark.skipif(
    not hasattr(torch.library, "EffectType"), reason="an old compiler drops calls without users"
)
def test_a_rank_that_uses_no_result_makes_its_calls_in_order(rank_pool: Pools):
    rank_pool(3).run(compiled_with_an_idle_rank)


@pytest.mark.slow
def test_compiled_code_follows_the_current_communicator(rank_pool: Pools):
    rank_pool(3).run(compiled_for_two_communicators)


@pytest.mark.slow
def test_compiled_for_shapes_that_vary(rank_pool: Pools):
    rank_pool(3).run(compiled_for_many_shapes)


@pytest.mark.slow
def test_inductor_keeps_the_order_of_calls(rank_pool: Callable[[int], RankPool]):
    assert rank_pool(1).run(calls_of_compiled_code) == [[64, 1, 32, 2]]


def calls_of_compiled_code() -> list[int]:
    """The widths of calls that need each other in nothing, in the order in which they are made."""
    comm, made = join(ONE.shares()), []

    def step(x: Tensor) -> Tensor:
        sums = [comm.expand(x.expand(-1, width).cumsum(1)).sum() for width in (64, 1, 32, 2)]
        return sums[3] + sums[2] + sums[1] + sums[0]

    def noted(comm: Any, rows: Tensor, exchange: int) -> Tensor:
        made.append(rows.shape[1])
        return comm.transport.expand(rows, exchange)

    with patch.object(ops, "expand_now", noted):
        torch.compile(step, fullgraph=True)(torch.ones(comm.num_owned, 1))
    return made
