"""Communicators of device tensors, on devices made of host memory; and how devices are asked for."""

import threading
from contextlib import nullcontext
from types import NoneType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import torch
from torch import Tensor

import dgcl
from dgcl.communicator import Communicator
from dgcl.prepare.part_files import save_parts
from dgcl.prepare.shares import prepare_inputs
from dgcl.ranks.context import context
from dgcl.ranks.machines import RankPlace, places_of_ranks, topology_of_job
from dgcl.transport.base import Around
from dgcl.transport.collective.transport import CollectiveTransport
from dgcl.transport.connect import connect_transport
from dgcl.transport.cuda import connect_device, open_devices
from dgcl.transport.cuda.device_exchange import DeviceExchange
from dgcl.transport.cuda.gpu import number_of, open_device
from tests.support.fake_cuda import FakeCuda, Memory
from tests.support.fake_kernels import KERNELS, always, nothing
from tests.support.fake_ranks import fake_devices, open_fake
from tests.support.plans import World, make_world, random_world
from tests.support.ranks import join, on_threads
from tests.support.samples import named

WORLD = random_world(3, 3, "random-1")
PAIR = make_world([(0, 1), (2, 1), (1, 0)], [0, 1, 0], 2)


class InStep(Around):
    """A device exchange whose results are there when a call returns: here torch computes on the host."""

    def expand(self, rows: Tensor, exchange: int = 0) -> Tensor:
        out = self.transport.expand(rows, exchange)
        self.transport.synchronize()
        return out

    def fold(self, rows: Tensor, exchange: int = 0) -> Tensor:
        out = self.transport.fold(rows, exchange)
        self.transport.synchronize()
        return out


def on_device(world: World, function: Any, memory: Memory | None = None) -> list[Any]:
    """``function(comm)`` on ranks that are threads, each with a device of its own."""
    shares = world.shares()
    with fake_devices(world.world_size, memory=memory) as fakes:

        def run() -> Any:
            control = context.require_control()
            comm = join(shares, device=open_fake(fakes[control.rank]))
            assert isinstance(comm.transport, DeviceExchange)
            comm.use_transport(InStep(comm.transport))
            result = function(comm)
            fakes[control.rank].drain()
            return result

        return dgcl.launch(run, world.world_size)


def train(comm: Communicator) -> list[Tensor]:
    """Two layers, three steps, halo gradients and a halo of constants."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(comm.num_nodes, 6, generator=generator, dtype=torch.float64)
    weights = [torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(2)]
    parameters = [weight.requires_grad_() for weight in weights]
    x = comm.dispatch_features(features, halo=True)
    seen = [x.clone()]
    for _ in range(3):
        h = torch.tanh(x[: comm.num_owned] @ parameters[0] + x.sum(0))
        h = dgcl.graph_allgather(h, comm)
        pending = dgcl.graph_allgather_async((h[: comm.num_owned] @ parameters[1]).relu(), comm)
        loss = pending.wait().square().sum() + h.square().sum()
        grads = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter -= 1e-3 * comm.all_reduce_sum(grad)
        seen += [loss.detach().clone(), *(parameter.detach().clone() for parameter in parameters)]
    return seen


def test_training_is_that_of_the_cpu_to_the_bit():
    wanted = on_threads(WORLD, train)
    for mine, theirs in zip(on_device(WORLD, train), wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_bytes_are_those_of_the_plan_and_memory_goes_back():
    def body(comm: Communicator) -> Any:
        comm.expand(torch.ones(comm.num_owned, 2))
        comm.fold(torch.ones(comm.num_local, 2))
        comm.synchronize()
        return {verb: sent.clone() for verb, sent in comm.bytes_sent.items()}

    counted = on_device(WORLD, body)
    for rank, sent in enumerate(counted):
        assert sent["expand"].tolist() == (8 * WORLD.planned_rows[rank]).tolist()
        assert sent["fold"].tolist() == (8 * WORLD.planned_rows[:, rank]).tolist()


def test_rows_that_are_handed_out_are_on_the_device():
    """Meta stands for a device that is not the CPU."""

    def body(comm: Communicator) -> list[str]:
        comm.device = torch.device("meta")
        edges = comm.dispatch_edges(torch.ones(comm.num_edges, 2))
        vertices = comm.dispatch_features(torch.ones(comm.num_nodes, 2))
        assert edges.shape == (comm.local.num_edges, 2)
        return [edges.device.type, vertices.device.type]

    assert on_device(PAIR, body) == [["meta", "meta"]] * 2


def test_parts_from_files_are_joined_on_devices(tmp_path, monkeypatch):
    monkeypatch.setattr("dgcl.transport.cuda.ThreadControl", NoneType)  # threads stand for processes
    inputs = prepare_inputs(WORLD.graph, 3, "uniform", part=WORLD.part)
    save_parts(tmp_path / "parts", inputs)
    with fake_devices(3) as fakes:
        opened = threading.local()
        monkeypatch.setattr(
            "dgcl.transport.cuda.gpu.open_device", lambda device: open_fake(fakes[opened.rank])
        )

        def run() -> bool:
            opened.rank = context.require_control().rank
            comm = dgcl.load_comm_info(tmp_path / "parts", device="cuda")
            assert isinstance(comm.transport, DeviceExchange)
            rows = (comm.owned_ids[:, None] * 10 + torch.arange(3)).float()
            out = comm.expand(rows)
            comm.synchronize()
            ids = torch.cat([comm.owned_ids, comm.halo_ids])
            comm.close()
            return torch.equal(out, (ids[:, None] * 10 + torch.arange(3)).float())

        assert dgcl.launch(run, 3) == [True] * 3


def test_parts_ask_for_a_device_that_is_there(tmp_path):
    def run():
        with pytest.raises(ValueError, match="device: expected 'cpu' or a CUDA device, got meta"):
            dgcl.load_comm_info(tmp_path, device="meta")

    dgcl.launch(run, 2)


def test_a_baseline_may_take_over_and_give_back():
    def body(comm: Communicator) -> bool:
        baseline = comm.transport
        assert isinstance(baseline, InStep)
        return comm.use_transport(baseline.transport) is baseline and comm.transport is baseline.transport

    assert on_device(PAIR, body) == [True, True]


def test_rows_elsewhere_are_refused():
    def body(comm: Communicator):
        with pytest.raises(ValueError, match=r"rows must be on the CPU, .*got meta.*; move them"):
            comm.expand(torch.ones(comm.num_owned, 2, device="meta"))

    on_threads(PAIR, body)


def test_a_driver_that_cannot_lock_memory_is_an_error_of_all():
    with fake_devices(2) as fakes:
        fakes[1].refused["cuMemHostAlloc"] = 801

        def run():
            control = context.require_control()
            device = open_fake(fakes[control.rank])
            with pytest.raises(dgcl.CommError, match=r"rank 1: the driver cannot lock memory.*801"):
                DeviceExchange({"halo": PAIR.programs[control.rank]}, control, 20.0, device)

        dgcl.launch(run, 2)


@pytest.mark.parametrize("trouble", ["compute-mode", "no-driver", "shared", "wrong-sums"])
def test_what_does_not_prove_itself_gives_way_to_collectives(trouble: str, monkeypatch, caplog):
    """One warning with the reason; the rows are right."""
    reason = "rank 1: the compute mode of its GPU is exclusive to a process"
    with fake_devices(3) as fakes:
        if trouble == "compute-mode":
            fakes[1].mode = 3
        elif trouble == "shared":
            reason = "ranks share a GPU, where a kernel that waits"
        elif trouble == "no-driver":
            reason = "rank 1: the driver cannot be used: cuInit"
        else:
            reason = "rank 0: exchange 'halo' adds other rows than a vertex's on rank 0"
            monkeypatch.setitem(KERNELS, "sum_float32", (7, nothing, always, nothing))

        def run() -> tuple[list[Tensor], str]:
            control = context.require_control()
            device = open_fake(fakes[control.rank])
            if trouble == "no-driver" and control.rank == 1:
                device.problem = "the driver cannot be used: cuInit"
            device.is_shared = trouble == "shared"
            comm = join(WORLD.shares(), device=device)
            assert isinstance(comm.transport, CollectiveTransport)
            return train(comm), comm.describe()

        results = dgcl.launch(run, 3)
    for (mine, text), theirs in zip(results, on_threads(WORLD, train), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        assert reason in text
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum(reason in line for line in warnings) == 1


def test_a_channel_that_cannot_be_had_is_an_error():
    fake = FakeCuda(Memory())
    fake.mode = 3

    def run():
        for channel, kind, text in (
            ("memory", dgcl.CommError, "GPUs do not reach each other's memory: rank 0: the compute mode"),
            ("network", ValueError, 'rows on GPUs travel by "auto", "memory" or "collective"'),
        ):
            with pytest.raises(kind, match=text):
                connect_transport(
                    {"halo": PAIR.programs[context.require_control().rank]},
                    context.require_control(),
                    20.0,
                    channel,
                    open_fake(fake),
                )

    dgcl.launch(run, 2)
    fake.stop()


@pytest.mark.parametrize(
    "what, why",
    [
        ("exports", "its device memory cannot be shared: cuIpcGetMemHandle"),
        ("access", "the driver has no peer access between them"),
        ("atomics", "atomic operations between them are not native"),
        ("sight", "one does not see the other's GPU (CUDA_VISIBLE_DEVICES)"),
    ],
)
def test_devices_that_cannot_reach_each_other_are_named_and_keep_nothing(what: str, why: str):
    with fake_devices(2) as fakes:
        for fake in fakes:
            fake.access, fake.atomics, fake.hidden = what != "access", what != "atomics", what == "sight"
            if what == "exports":
                fake.refused["cuIpcGetMemHandle"] = 801

        def run() -> tuple[Any, str]:
            control = context.require_control()
            programs = {"halo": PAIR.programs[control.rank]}
            return connect_device(programs, control, 20.0, open_fake(fakes[control.rank]))

        results = dgcl.launch(run, 2)
    assert all(exchange is None and why in problem for exchange, problem in results), results


def test_a_device_whose_driver_cannot_be_used_is_torchs(monkeypatch):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        init=lambda: None,
        synchronize=lambda: None,
        device=lambda index: nullcontext(),
        get_device_name=lambda index: "AMD Instinct MI250X",
        get_device_properties=lambda index: SimpleNamespace(uuid=f"GPU-{UUID(int=5)}"),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(
        "dgcl.kernels.cuda_driver.ctypes.CDLL", lambda name: SimpleNamespace()
    )  # has no function
    device = open_device(torch.device("cuda"))
    assert device.problem.startswith("the driver cannot be used: cuInit: CUDA_ERROR_NOT_FOUND")
    assert device.name == f"GPU-{UUID(int=5)}"
    assert device.tensors.device == torch.device("cuda", 0)


def test_ranks_that_share_a_gpu_are_named(monkeypatch, caplog):
    fake = FakeCuda(Memory(), uuid=1)
    monkeypatch.setattr("dgcl.transport.cuda.gpu.open_device", lambda device: open_fake(fake))
    with pytest.raises(ValueError, match=r"ranks 0 and 1 are threads and share GPU-01.* start proc"):
        dgcl.launch(lambda: open_devices(context.require_control(), "cuda"), 2)
    monkeypatch.setattr("dgcl.transport.cuda.ThreadControl", NoneType)
    opened = dgcl.launch(lambda: open_devices(context.require_control(), "cuda"), 2)
    fake.stop()
    assert all(device.is_shared for device in opened)
    assert "ranks 0 and 1 share GPU-01000000-0000-0000-0000-000000000000" in caplog.text


@pytest.mark.parametrize(
    "device, local, current, number",
    [
        ("cuda", "2", 0, 2),
        ("cuda", "2", 1, 1),
        ("cuda:3", "2", 0, 3),
        ("cuda", "", 0, 0),
        ("cuda", "7", 0, 0),
    ],
)
def test_a_rank_takes_the_device_that_was_set_or_its_own(
    device: str, local: str, current: int, number: int, monkeypatch
):
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert number_of(torch.device(device)) == number


@pytest.mark.parametrize(
    "device, message",
    [
        ("meta", "device: expected 'cpu' or a CUDA device, got meta"),
        ("nonsense", "device: 'nonsense'"),
        pytest.param(
            "cuda",
            "sees no CUDA device; use device='cpu'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_no_such_device(device: str, message: str):
    def run():
        rank = context.require_control().rank
        with pytest.raises(ValueError, match=message) as caught:
            open_devices(context.require_control(), device if rank == 1 else "cpu")
        assert "rank 1" in str(caught.value)

    dgcl.launch(run, 2)


def test_the_cpu_needs_no_device():
    def run() -> bool:
        return open_devices(context.require_control(), "cpu") is None

    assert dgcl.launch(run, 2) == [True, True]


@named("shared", {"one-gpu": True, "a-gpu-each": False})
def test_an_automatic_topology_is_that_of_the_gpus(shared: bool, monkeypatch):
    asked: list[list[str]] = []

    def find_topology(control: object, places: list[RankPlace]) -> SimpleNamespace:
        asked.append([place.gpu for place in places])
        return SimpleNamespace(topology="found")

    monkeypatch.setattr("dgcl.ranks.machines.find_topology", find_topology)

    def run() -> object:
        control = context.require_control()
        number = 1 if shared else 1 + control.rank
        places = places_of_ranks(control, f"GPU-{UUID(int=number)}")
        return topology_of_job(control, "auto", places)

    assert dgcl.launch(run, 2) == (["uniform:2"] * 2 if shared else ["found"] * 2)
    first = "GPU-00000000-0000-0000-0000-000000000001"
    assert asked == ([] if shared else [[first, first[:-1] + "2"]] * 2)
