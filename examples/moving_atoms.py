"""Atoms that move: energies and forces over neighbour lists that are rebuilt every few steps.

    torchrun --nproc-per-node=4 examples/moving_atoms.py
    python examples/moving_atoms.py                          # on one rank, with the same energies

Each rank owns the atoms of a slab of the box. For new lists it takes the positions of all atoms here, where a real code
asks its neighbours; the lists go to `rewire`, atoms that have crossed a border to other owners, and all else stays.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

import dgcl

CUTOFF, EVERY, STEP = 1.5, 5, 0.002


def box(side: int) -> Tensor:
    """Positions (side**3, 3) of a shaken lattice."""
    axis = torch.arange(side, dtype=torch.float64)
    lattice = torch.cartesian_prod(axis, axis, axis)
    return lattice + 0.1 * torch.rand(
        lattice.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )


def slab_of(positions: Tensor, side: int, num_ranks: int) -> Tensor:
    """The rank of each atom, by its first coordinate."""
    return (positions[:, 0] / side * num_ranks).long().clamp(0, num_ranks - 1)


def neighbours(positions: Tensor, owned: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs (sources, heads) that are closer than the cutoff, for the heads that this rank owns."""
    near = torch.cdist(positions[owned], positions) < CUTOFF
    heads, sources = near.nonzero(as_tuple=True)
    others = owned[heads] != sources
    return sources[others], owned[heads[others]]


def energies(comm: dgcl.Communicator, positions: Tensor) -> Tensor:
    """(num_owned,) the energy of each owned atom, smooth at the cutoff; each pair is half its atoms' each."""
    graph = comm.local_graph("csr")
    everywhere = comm.expand(positions)
    distance = (graph.at_sources(everywhere) - graph.at_heads(positions)).norm(dim=1)
    window = 0.5 * (torch.cos(math.pi * distance / CUTOFF) + 1)
    return 0.5 * graph.sum_edges(window * (distance**-6 - distance**-3))


def simulate(side: int, steps: int) -> tuple[list[float], Tensor | None]:
    """Total energies (kinetic too) and, on rank 0, final positions by atom. Collective."""
    positions = box(side)
    comm = dgcl.build_comm_info(dgcl.graph.as_graph([[0], [0]], num_nodes=len(positions)), partition="range")
    x = positions[comm.owned_ids]
    v, forces, totals = torch.zeros_like(x), None, []
    for step in range(steps):
        if step % EVERY == 0:
            everywhere = dgcl.collect(x, None)
            owned = (slab_of(everywhere, side, comm.world_size) == comm.rank).nonzero()[:, 0]
            x, v = dgcl.fetch(x, owned), dgcl.fetch(v, owned)
            comm = comm.rewire(neighbours(everywhere, owned), owned_ids=owned)
            forces = None
        if forces is None:
            forces = force(comm, x)[1]
        v = v + STEP / 2 * forces
        x = x + STEP * v
        energy, forces = force(comm, x)
        v = v + STEP / 2 * forces
        totals.append(float(dgcl.nn.global_sum(energy.sum() + 0.5 * v.pow(2).sum(), comm=comm)))
    return totals, dgcl.collect(x)


def force(comm: dgcl.Communicator, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies and forces of the owned atoms: gradients of other ranks' energies come back along the same wiring."""
    x = x.detach().requires_grad_()
    energy = energies(comm, x)
    (gradient,) = torch.autograd.grad(energy.sum(), x)
    return energy.detach(), -gradient


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=6, help="atoms along each side of the box")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    dgcl.init()
    totals, final = simulate(args.side, args.steps)
    if final is not None:
        print(f"{args.side**3} atoms: total energy {totals[0]:.6f} -> {totals[-1]:.6f} in {args.steps} steps")
