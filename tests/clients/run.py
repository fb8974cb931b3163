"""Libraries that people train with, unchanged, on ranks against one device: ``make test-clients``."""

import contextlib
import importlib.metadata
import re
import warnings
from pathlib import Path

import pytest
import torch

import dgcl
from tests.clients.cases import CLIENTS, CUTOFF, MESHES, atoms, atoms_of_ranks, mesh
from tests.support.rows_harness import differences, plain, seeded


@contextlib.contextmanager
def settings(dtype=torch.float64):
    """What a library finds, in the test and in ranks that are processes."""
    warnings.filterwarnings("ignore")
    torch.serialization.add_safe_globals([slice])  # which the oldest e3nn reads
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(torch.float32)


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


def given(client, atoms):
    """The client's data, in its own numbers."""
    return {
        name: each.to(client.dtype, copy=True) if each.is_floating_point() else each
        for name, each in client.data(atoms).items()
    }


def trained(client, dispatch, distribute, cells=(3,)):
    """Energy, forces and stress, and two steps of training; the arguments are the lines that change."""
    data = dispatch(given(client, atoms(cells=cells)))
    model = distribute(seeded(client.make))
    results = dict(
        zip(("energy", "forces", "stress", "energies"), client.evaluate(model, data), strict=False)
    )
    fit(client, model, data, results)
    return plain(results)


def batch(client, dispatch, distribute):
    """The same of a batch of two structures."""
    return trained(client, dispatch, distribute, (3, 2))


def moved(client, dispatch, distribute, periodic=False, comm=None):
    """Five steps of Verlet without periods, with neighbours anew in each; all ranks have all positions."""
    whole, model, results = atoms(periodic), None, {}
    x = whole.pos if comm is None else whole.pos[comm.owned_ids]
    speed = torch.zeros_like(x)
    for step in range(5):
        if comm is not None:
            near = dgcl.neighbors(x, CUTOFF, whole.cell[0], partition="space")
            x, speed = dgcl.fetch(x, near.owned_ids), dgcl.fetch(speed, near.owned_ids)
            comm = comm.rewire(near.edge_index, owned_ids=near.owned_ids)
            data = given(client, atoms_of_ranks(near, comm, whole, x))
        else:
            data = dispatch(given(client, atoms(periodic, positions=x.numpy())))
        model = model or distribute(seeded(client.make))
        energy, force, *_ = client.evaluate(model, data)
        results |= plain({f"step {step}: energy": energy, f"step {step}: forces": force})
        force = results[f"step {step}: forces"] if comm is None else dgcl.local(force).detach()
        speed = speed + 0.2 * force.to(x)
        x = x + 0.2 * speed
    return results


def spread(client, dispatch, distribute):
    """The same with periods; each rank has its own atoms, and finds their neighbours among those of others."""
    comm = None
    if dispatch is not unchanged:
        comm = dgcl.build_comm_info(dgcl.graph.as_graph([[], []], num_nodes=108), partition="range")
    return moved(client, dispatch, distribute, True, comm)


def epoch(client, dispatch, distribute):
    """Three steps of a model on a mesh."""
    data = dispatch(mesh())
    model = distribute(seeded(lambda: client.make().double()))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(client.evaluate(model, data), data["y"])
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return plain(
        {"losses": losses, "output": client.evaluate(model, data), "parameters": [*model.parameters()]}
    )


def unchanged(each):
    """What one device has in the place of a changed line."""
    return each


def on_rank(name, script):
    """The numbers of a rank, where two lines are changed, each time that data is made."""
    client = (CLIENTS | MESHES)[name]
    with settings(client.dtype):
        return script(client, lambda data: dgcl.dispatch(data, **client.options), dgcl.distribute)


def largest_error(measured, expected):
    """Of all numbers, relative to the largest of each tensor."""
    if isinstance(expected, dict):
        return max(largest_error(measured[name], each) for name, each in expected.items())
    if isinstance(expected, list):
        return max(map(largest_error, measured, expected), default=0.0)
    return ((measured - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


#: On which numbers of ranks; -3 are processes, which draw the order of a set each for itself.
RANKS = {trained: (1, 2, 4, -3), batch: (2,), moved: (4,), spread: (1, 4, -3), epoch: (1, 2, 4)}
AS_PROCESSES = "mace", "schnetpack SchNet"
CASES = {
    f"{name}-{script.__name__}-{ranks}": (name, script, ranks)
    for name, client in (CLIENTS | MESHES).items()
    for script in ((epoch,) if name in MESHES else (trained, batch, moved, spread))
    for ranks in RANKS[script]
    if (script is not spread or client.is_spread) and (ranks > 0 or name in AS_PROCESSES)
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_one_device(case, record_property):
    name, script, ranks = CASES[case]
    kind = "threads" if ranks > 0 else "processes"
    client = (CLIENTS | MESHES)[name]
    pytest.importorskip(client.modules)
    call = ", ".join(f"{option}={value!r}" for option, value in client.options.items())
    about = {"script": script.__name__, "call": f"`{call}`" if call else "", "lines": client.lines}
    about |= {"ranks": f"{abs(ranks)} {kind}", "version": importlib.metadata.version(client.package)}
    for each in {"client": name, **about}.items():
        record_property(*each)
    with settings(client.dtype):
        expected = script(client, unchanged, unchanged)
    results = dgcl.launch(on_rank, abs(ranks), name, script, ranks=kind)
    assert differences(results, expected, client.tolerance) == []
    record_property("error", largest_error(results[0], expected))


def programs(heading):
    """Below a heading of the page."""
    below = Path("docs/potentials.md").read_text().split(f"\n{heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", below, re.DOTALL)


def test_a_script_of_ase():
    """A relaxation by the page's lines, and without them."""
    pytest.importorskip("mace")
    from ase.build import bulk
    from ase.optimize import BFGS

    define, run = programs("## ASE scripts")

    def relaxed(*definitions):
        names = {"BFGS": BFGS, "dgcl": dgcl, "model": seeded(CLIENTS["mace"].make), "on_ranks": unchanged}
        atoms = names["atoms"] = bulk("H", "fcc", a=4.0, cubic=True).repeat(3)
        atoms.rattle(0.1, seed=1)
        for each in (*definitions, run):
            exec(each, names)
        assert atoms.calc.results["energy"]
        return {
            name: torch.tensor(each)
            for name, each in (("x", atoms.positions), ("forces", atoms.get_forces()))
        }

    with settings():
        assert differences(dgcl.launch(relaxed, 3, define), *dgcl.launch(relaxed, 1), 1e-9) == []


def test_ghosts_of_lammps():
    """Energies and forces of MACE by the page's object, on its own atoms and ghosts."""
    pytest.importorskip("mace")
    names, whole, client = {"torch": torch}, atoms(), CLIENTS["mace"]
    exec(*programs("## Hooks for LAMMPS"), names)

    def rank():
        comm = dgcl.build_comm_info(
            dgcl.graph.as_graph([[], []], num_nodes=len(whole.pos)), partition="range"
        )
        near = dgcl.neighbors(whole.pos[comm.owned_ids], CUTOFF, whole.cell[0], partition="space")
        comm = comm.rewire(near.edge_index, owned_ids=near.owned_ids)
        x = whole.pos[near.owned_ids].requires_grad_()
        kinds = given(client, whole)["node_attrs"][near.owned_ids]
        model, shifts = seeded(client.make), comm.dispatch_edges(near.shifts)
        energies = names["energies"](model, comm, x, kinds, shifts, whole.cell[0])
        (gradient,) = torch.autograd.grad(energies.sum(), x)
        return {"energies": dgcl.collect(energies.detach(), None), "forces": dgcl.collect(-gradient, None)}

    with settings():
        _, forces, _, energies = client.evaluate(seeded(client.make), given(client, whole))
        expected = {"energies": energies.detach(), "forces": forces.detach()}
        assert differences(dgcl.launch(rank, 3), expected, 1e-9) == []
