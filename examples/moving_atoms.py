"""Atoms that move in a periodic box: neighbours, owners, forces and Verlet; no rank has all positions.

    torchrun --nproc-per-node=4 examples/moving_atoms.py               # 100,000 atoms
    python examples/moving_atoms.py --side 10                          # on one rank, 1,000 atoms

Every few steps each rank gets a box of the space, its atoms and their neighbour lists anew; `rewire` takes these, and
all else stays. Lists have a margin, so that they hold for the steps in between. For models of libraries see the page
"Potentials and meshes".
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import process_time

import torch
from torch import Tensor

import dgcl

CUTOFF, MARGIN, EVERY, STEP = 1.5, 0.1, 5, 0.002


def plane(side: int, number: int) -> Tensor:
    """Positions (side**2, 3) of a plane of a shaken lattice."""
    axis = torch.arange(side, dtype=torch.float64)
    lattice = torch.cartesian_prod(axis[number : number + 1], axis, axis)
    generator = torch.Generator().manual_seed(number)
    return lattice + 0.1 * torch.rand(lattice.shape, generator=generator, dtype=torch.float64)


def energies(comm: dgcl.Communicator, positions: Tensor, shifts: Tensor) -> Tensor:
    """(num_owned,) the energy of each owned atom, smooth at the cutoff; each pair is half its atoms' each."""
    graph = comm.local_graph("csr")
    everywhere = comm.expand(positions)
    distance = (graph.at_sources(everywhere) + shifts - graph.at_heads(positions)).norm(dim=1)
    window = 0.5 * (torch.cos(math.pi * (distance / CUTOFF).clamp(max=1)) + 1)
    return 0.5 * graph.sum_edges(window * (distance**-6 - distance**-3))


def force(comm: dgcl.Communicator, x: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """Energies and forces of the owned atoms: gradients of other ranks' energies come back along the same wiring."""
    x = x.detach().requires_grad_()
    energy = energies(comm, x, shifts)
    (gradient,) = torch.autograd.grad(energy.sum(), x)
    return energy.detach(), -gradient


@contextmanager
def timed(seconds: Counter[str], phase: str) -> Iterator[None]:
    """Add this rank's CPU time within to a phase."""
    start = process_time()
    yield
    seconds[phase] += process_time() - start


def simulate(side: int, steps: int) -> tuple[list[float], Tensor, Counter[str]]:
    """Total energies (kinetic too); positions of this rank's atoms; its CPU seconds by phase. Collective."""
    no_edges = dgcl.graph.as_graph([[], []], num_nodes=side**3)
    comm = dgcl.build_comm_info(no_edges, partition="range")
    planes, inverse = (comm.owned_ids // side**2).unique_consecutive(return_inverse=True)
    x = torch.cat([plane(side, number) for number in planes.tolist()])[
        inverse * side**2 + comm.owned_ids % side**2
    ]
    v, seconds, totals = torch.zeros_like(x), Counter(), []
    for step in range(steps):
        if step % EVERY == 0:
            with timed(seconds, "neighbours"):
                near = dgcl.neighbors(x, CUTOFF + MARGIN, [side] * 3, partition="space")
            with timed(seconds, "rewire"):
                x, v = dgcl.fetch(x, near.owned_ids), dgcl.fetch(v, near.owned_ids)
                comm = comm.rewire(near.edge_index, owned_ids=near.owned_ids)
                shifts = side * comm.dispatch_edges(near.shifts)
            _, forces = force(comm, x, shifts)
        with timed(seconds, "forces"):
            v = v + STEP / 2 * forces
            x = x + STEP * v
            energy, forces = force(comm, x, shifts)
            v = v + STEP / 2 * forces
            totals.append(float(dgcl.nn.global_sum(energy.sum() + 0.5 * v.pow(2).sum(), comm=comm)))
    return totals, x, seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=47, help="atoms along each side of the box")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    dgcl.init()
    totals, _, seconds = simulate(args.side, args.steps)
    if dgcl.rank() == 0:
        print(f"{args.side**3} atoms: total energy {totals[0]:.6f} -> {totals[-1]:.6f} in {args.steps} steps")
        for phase, spent in seconds.items():
            print(f"{phase:11} {1000 * spent / args.steps:8.1f} ms of CPU in a step, on rank 0")
