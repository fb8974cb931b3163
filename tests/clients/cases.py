"""The table of clients: how a model of a library is made, what it is given, and how it is called, as its users do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

CUTOFF = 3.5
CENTRE_FIRST = {"flow": "target_to_source"}
torch.utils.data.dataloader.T_co = TypeVar(
    "T_co"
)  # which schnetpack imports, and newer versions of torch lack


def atoms(periodic=True, cells=3, positions=None):
    """A shaken crystal of three kinds of atoms, and its neighbours."""
    from ase.build import bulk
    from ase.neighborlist import neighbor_list

    crystal = bulk("Cu", "fcc", a=4.0, cubic=True).repeat(cells)
    crystal.rattle(0.1, seed=1)
    crystal.pbc = periodic
    if positions is not None:
        crystal.positions = positions
    i, j, shifts = neighbor_list("ijS", crystal, CUTOFF)
    return SimpleNamespace(
        pos=torch.tensor(crystal.positions),
        kind=torch.arange(len(crystal)) % 3,
        cell=torch.tensor(crystal.cell.array),
        volume=torch.tensor([crystal.get_volume()]),
        centres=torch.tensor(i),
        others=torch.tensor(j),
        shifts=torch.tensor(shifts, dtype=torch.float64),
        batch=torch.zeros(len(crystal), dtype=torch.long),
        periodic=periodic,
    )


class Client(NamedTuple):
    """A library of potentials.

    Attributes:
        modules: What has to be importable.
        make: The model.
        data: Of ``atoms`` what the model is given.
        evaluate: Of the model and its data energy, forces, stress, and energies of atoms, as far as it gives them.
        options: Of ``dgcl.dispatch``.
        dtype: What the library computes in.
        tolerance: How far from one device.
    """

    modules: str
    make: object
    data: object
    evaluate: object
    options: dict = {}  # noqa: RUF012
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-9


def mace(kind="ScaleShiftMACE", first="RealAgnosticResidualInteractionBlock", **options):
    from e3nn import o3
    from mace import modules

    blocks = modules.interaction_classes
    return getattr(modules, kind)(
        r_max=CUTOFF, num_bessel=4, num_polynomial_cutoff=5, max_ell=2, num_interactions=2, num_elements=3,
        interaction_cls=blocks["RealAgnosticResidualInteractionBlock"], interaction_cls_first=blocks[first],
        hidden_irreps=o3.Irreps("4x0e + 4x1o"), MLP_irreps=o3.Irreps("4x0e"), atomic_energies=np.array([-1.0, -2, -3]),
        avg_num_neighbors=12.0, atomic_numbers=[1, 6, 8], correlation=2, gate=nn.functional.silu, **options,
    )  # fmt: skip


def mace_data(a):
    return {
        "positions": a.pos, "node_attrs": nn.functional.one_hot(a.kind, 3).double(), "cell": a.cell,
        "edge_index": torch.stack([a.centres, a.others]), "unit_shifts": a.shifts, "shifts": a.shifts @ a.cell,
        "batch": a.batch, "ptr": torch.tensor([0, len(a.pos)]),
    }  # fmt: skip


def mace_evaluate(model, data):
    out = model(dict(data), training=True, compute_stress=True)
    return [out[name] for name in ("energy", "forces", "stress", "node_energy")]


def schnetpack(kind="SchNet"):
    import schnetpack as spk

    torch.set_default_dtype(torch.float32)  # which its bases take for granted
    radial = spk.nn.GaussianRBF(n_rbf=8, cutoff=CUTOFF)
    representation = getattr(spk.representation, kind)(
        n_atom_basis=8, n_interactions=2, radial_basis=radial, cutoff_fn=spk.nn.CosineCutoff(CUTOFF)
    )
    model = spk.model.NeuralNetworkPotential(
        representation,
        input_modules=[spk.atomistic.Strain(), spk.atomistic.PairwiseDistances()],
        output_modules=[
            spk.atomistic.Atomwise(n_in=8, output_key="energy", per_atom_output_key="energies"),
            spk.atomistic.Forces(calc_stress=True),
        ],
    )
    torch.set_default_dtype(torch.float64)
    return model.double()


def schnetpack_data(a):
    return {
        "_positions": a.pos, "_atomic_numbers": a.kind + 1, "_idx_i": a.centres, "_idx_j": a.others,
        "_offsets": a.shifts @ a.cell, "_cell": a.cell[None], "_idx_m": a.batch, "_n_atoms": torch.tensor([len(a.pos)]),
    }  # fmt: skip


def schnetpack_evaluate(model, data):
    inputs = dict(data)
    out = model(inputs)
    return [out["energy"], out["forces"], out["stress"], inputs["energies"]]


def nequip(**options):
    from nequip.model.nequip_models import NequIPGNNModel
    from nequip.utils.global_state import set_global_state

    set_global_state()
    return NequIPGNNModel(
        seed=0, model_dtype="float64", r_max=CUTOFF, type_names=["H", "C", "O"], num_layers=2, l_max=1, num_features=4,
        radial_mlp_width=8, avg_num_neighbors=12.0, compile_mode="eager", **options,
    )  # fmt: skip


def nequip_data(a):
    return {
        "pos": a.pos, "atom_types": a.kind, "edge_index": torch.stack([a.centres, a.others]),
        "edge_cell_shift": a.shifts, "cell": a.cell[None], "batch": a.batch, "num_atoms": torch.tensor([len(a.pos)]),
    }  # fmt: skip


def nequip_evaluate(model, data):
    out = model(dict(data))
    return [out[name] for name in ("total_energy", "forces", "stress", "atomic_energy")]


def sevenn(**options):
    import sevenn._const as const
    from sevenn.model_build import build_E3_equivariant_model
    from sevenn.parse_input import read_config_yaml  # noqa: F401

    config = dict(const.DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG)
    config |= {
        "cutoff": CUTOFF, "channel": 4, "lmax": 1, "num_convolution_layer": 2, "weight_nn_hidden_neurons": [8],
        "_number_of_species": 3, "_type_map": {1: 0, 6: 1, 8: 2}, "shift": 0.1, "scale": 1.5, "conv_denominator": 3.5,
        "train_shift_scale": False, "train_denominator": False, "version": "0",
        "radial_basis": {"radial_basis_name": "bessel", "bessel_basis_num": 4},
        "cutoff_function": {"cutoff_function_name": "poly_cut", "poly_cut_p_value": 6},
    } | options  # fmt: skip
    model = build_E3_equivariant_model(config)
    model.set_is_batch_data(True)
    return model


def sevenn_data(a):
    return {
        "x": torch.tensor([1, 6, 8])[a.kind], "atomic_numbers": torch.tensor([1, 6, 8])[a.kind], "pos": a.pos,
        "edge_index": torch.stack([a.centres, a.others]), "cell_lattice_vectors": a.cell,
        "pbc_shift": a.shifts, "cell_volume": a.volume, "batch": a.batch, "num_atoms": torch.tensor([len(a.pos)]),
        "edge_vec": a.pos[a.others] - a.pos[a.centres] + a.shifts @ a.cell,
    }  # fmt: skip


def sevenn_evaluate(model, data):
    out = model(dict(data))
    return [
        out[name] for name in ("inferred_total_energy", "inferred_force", "inferred_stress", "atomic_energy")
    ]


def torchmd(kind):
    from torchmdnet.models.model import create_model

    return create_model({
        "model": kind, "precision": 64, "embedding_dimension": 8, "num_layers": 1, "num_rbf": 4, "rbf_type": "expnorm",
        "trainable_rbf": False, "activation": "silu", "cutoff_lower": 0.0, "cutoff_upper": CUTOFF, "max_z": 10,
        "max_num_neighbors": 64, "neighbor_embedding": True, "aggr": "add", "attn_activation": "silu", "num_heads": 2,
        "distance_influence": "both", "equivariance_invariance_group": "O(3)", "derivative": True, "atom_filter": -1,
        "prior_model": None, "output_model": "Scalar", "reduce_op": "sum",
    })  # fmt: skip


def molecule_data(a, loops=True):
    own = torch.arange(len(a.pos) if loops else 0)
    edge_index = torch.stack([torch.cat([ends, own]) for ends in (a.others, a.centres)])
    return {"z": a.kind + 1, "pos": a.pos, "batch": a.batch, "edge_index": edge_index}


class Distances(nn.Module):
    """Edges that the data has, with loops, in the place of those that a library finds by compiled code."""

    def forward(self, pos, batch, box=None):
        vectors = pos[self.edges[0]] - pos[self.edges[1]]
        apart = self.edges[0] != self.edges[1]
        lengths = torch.zeros(len(vectors)).masked_scatter(apart, vectors[apart].norm(dim=1))
        return self.edges, lengths, vectors


def given_edges(model):
    model.representation_model.distance = Distances()
    return model


def given_evaluate(model, data):
    model.representation_model.distance.edges = data["edge_index"]
    return torchmd_evaluate(model, data)


def torchmd_evaluate(model, data):
    return model(data["z"], data["pos"].clone(), data["batch"])


def pyg_schnet():
    from torch_geometric.nn import SchNet

    return SchNet(8, 8, 2, 6, cutoff=CUTOFF, interaction_graph=lambda pos, batch: None)


def pyg_schnet_evaluate(model, data):
    edges, pos = data["edge_index"], data["pos"].clone().requires_grad_()
    model.interaction_graph = lambda pos, batch: (edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=1))
    energy = model(data["z"], pos, data["batch"])
    return energy, -torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]


def visnet():
    from torch_geometric.nn.models import ViSNet

    return given_edges(
        ViSNet(1, num_heads=2, num_layers=2, hidden_channels=8, num_rbf=4, cutoff=CUTOFF, derivative=True)
    )


PAIRS = {"ends": {"_idx_j": "source", "_idx_i": "target"}}
CLIENTS = {
    "mace": Client(
        "mace", lambda: mace(atomic_inter_scale=1.5, atomic_inter_shift=0.1), mace_data, mace_evaluate
    ),
    "mace density": Client(
        "mace", lambda: mace("MACE", "RealAgnosticDensityInteractionBlock"), mace_data, mace_evaluate
    ),
    "schnetpack SchNet": Client("schnetpack", schnetpack, schnetpack_data, schnetpack_evaluate, PAIRS),
    "schnetpack PaiNN": Client(
        "schnetpack", lambda: schnetpack("PaiNN"), schnetpack_data, schnetpack_evaluate, PAIRS
    ),
    "nequip": Client("nequip", nequip, nequip_data, nequip_evaluate, CENTRE_FIRST),
    "sevenn": Client("sevenn", sevenn, sevenn_data, sevenn_evaluate, CENTRE_FIRST, torch.float32, 1e-4),
    "pyg SchNet": Client(
        "torch_geometric", pyg_schnet, lambda a: molecule_data(a, loops=False), pyg_schnet_evaluate
    ),
    "pyg ViSNet": Client("torch_geometric", visnet, molecule_data, given_evaluate),
    **{
        f"torchmd-net {kind}{suffix}": Client(
            "torchmdnet", lambda kind=kind, change=change: change(torchmd(kind)), molecule_data, evaluate
        )
        for kind in ("graph-network", "equivariant-transformer", "tensornet")
        for suffix, change, evaluate in (
            ("", lambda model: model, torchmd_evaluate),
            (", given edges", given_edges, given_evaluate),
        )
    },
}


def mesh():
    """Vertices, edges and targets of a mesh model; edges come by their targets, as anemoi has them."""
    crystal = atoms()
    generator = torch.Generator().manual_seed(0)
    order = crystal.centres.argsort(stable=True)
    return {
        "x": torch.randn(len(crystal.pos), 8, generator=generator),
        "y": torch.randn(len(crystal.pos), 8, generator=generator),
        "edge_index": torch.stack([crystal.others, crystal.centres])[:, order],
        "edge_attr": torch.randn(len(order), 3, generator=generator),
    }


def anemoi(kind, **options):
    from anemoi.models.layers import processor

    return getattr(processor, kind)(
        num_layers=2, num_channels=8, num_chunks=1, mlp_hidden_ratio=2, edge_dim=3, layer_kernels={},
        gradient_checkpointing=False, **options,
    )  # fmt: skip


def anemoi_call(model, data):
    from anemoi.models.distributed.shapes import GraphShardInfo

    info = GraphShardInfo(nodes=[len(data["x"])])
    return model(data["x"], 1, info, data["edge_attr"], data["edge_index"])


def physicsnemo(**options):
    from physicsnemo.models.meshgraphnet import MeshGraphNet

    hidden = {
        f"hidden_dim_{part}": 8 for part in ("processor", "node_encoder", "edge_encoder", "node_decoder")
    }
    return MeshGraphNet(8, 3, 8, processor_size=2, **hidden, **options)


def physicsnemo_call(model, data):
    from torch_geometric.data import Data

    graph = Data(edge_index=data["edge_index"], num_nodes=len(data["x"]))
    return model(data["x"], data["edge_attr"], graph)


#: By name the module that must be importable, the model, and how it is called.
MESHES = {
    "anemoi GraphTransformerProcessor": (
        "anemoi.models",
        lambda: anemoi("GraphTransformerProcessor", num_heads=2, graph_attention_backend="pyg"),
        anemoi_call,
    ),
    "anemoi GNNProcessor": ("anemoi.models", lambda: anemoi("GNNProcessor", mlp_extra_layers=0), anemoi_call),
    "physicsnemo MeshGraphNet": ("physicsnemo", physicsnemo, physicsnemo_call),
    "physicsnemo MeshGraphNet, concat trick": (
        "physicsnemo",
        lambda: physicsnemo(do_concat_trick=True),
        physicsnemo_call,
    ),
}
