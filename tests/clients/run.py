"""Libraries that people train with, unchanged, on ranks against one device: ``make test-clients``."""

import functools
import warnings

import pytest
import torch

import dgcl
from tests.clients.cases import CLIENTS, MESHES, atoms, mesh
from tests.dgcl.rows.harness import differences, plain, seeded

WORLD_SIZES = 1, 2, 4


def fit(client, model, data, results):
    """Two steps: on energy, forces and stress, and on forces alone."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for name in ("all", "forces"):
        out = client.evaluate(model, data)
        loss = out[1].square().mean()
        if name == "all":
            loss = loss + (out[0] / 100).square().sum() + sum(each.square().sum() for each in out[2:3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results[f"{name}: loss"] = loss
        results[f"{name}: gradients"] = [each.grad for each in model.parameters() if each.grad is not None]


@pytest.fixture(autouse=True)
def _settings(request):
    warnings.filterwarnings("ignore")
    torch.serialization.add_safe_globals([slice])  # which the oldest e3nn reads
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def given(client, atoms):
    """The client's data, in its own numbers."""
    return {
        name: each.to(client.dtype, copy=True) if each.is_floating_point() else each
        for name, each in client.data(atoms).items()
    }


def trained(client, dispatch=lambda data: data, distribute=lambda model: model):
    """Energy, forces and stress, and two steps of training; the arguments are the lines that change."""
    data = dispatch(given(client, atoms()))
    model = distribute(seeded(client.make))
    results = dict(
        zip(("energy", "forces", "stress", "energies"), client.evaluate(model, data), strict=False)
    )
    fit(client, model, data, results)
    return plain(results)


def moved(client, dispatch=lambda data: data, distribute=lambda model: model):
    """Five steps of Verlet without periods, with neighbours anew in each."""
    crystal, model = atoms(periodic=False), None
    force, speed, results = 0, torch.zeros_like(crystal.pos), {}
    for step in range(5):
        crystal = atoms(periodic=False, positions=(crystal.pos + 0.2 * speed).numpy())
        data = dispatch(given(client, crystal))
        model = model or distribute(seeded(client.make))
        energy, force, *_ = plain(client.evaluate(model, data))
        speed = speed + 0.2 * force
        results[f"step {step}: energy"], results[f"step {step}: forces"] = energy, force
    return results


def epoch(make, call, dispatch=lambda data: data, distribute=lambda model: model):
    """Three steps of a model on a mesh."""
    data = dispatch(mesh())
    model = distribute(seeded(lambda: make().double()))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(call(model, data), data["y"])
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return plain({"losses": losses, "output": call(model, data), "parameters": [*model.parameters()]})


def compare(script, world_size, tolerance=1e-9, **options):
    """Numbers of one device, and those of ranks where two lines change, each time that data is made."""

    def on_rank():
        return script(lambda data: dgcl.dispatch(data, **options), dgcl.distribute)

    expected = script()
    assert differences(dgcl.launch(on_rank, world_size), expected, tolerance) == []


@pytest.mark.parametrize("script", [trained, moved], ids=["trained", "moved"])
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_potential(world_size, name, script):
    client = CLIENTS[name]
    pytest.importorskip(client.modules)
    torch.set_default_dtype(client.dtype)
    compare(functools.partial(script, client), world_size, client.tolerance, **client.options)


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_mesh(world_size, name):
    module, make, call = MESHES[name]
    pytest.importorskip(module)
    compare(functools.partial(epoch, make, call), world_size)
