"""The table of clients: how a model of a library is made, what it is given, and how it is called, as its users do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

import dgcl

CUTOFF = 3.5
CENTRE_FIRST = {"flow": "target_to_source"}
torch.utils.data.dataloader.T_co = TypeVar(
    "T_co"
)  # which schnetpack imports, and newer versions of torch lack


def atoms(periodic=True, cells=(3,), positions=None):
    """Shaken crystals of three kinds of atoms, a structure for each number of cells, and their neighbours."""
    from ase.build import bulk
    from ase.neighborlist import neighbor_list

    parts, first = [], 0
    for number in cells:
        crystal = bulk("Cu", "fcc", a=4.0, cubic=True).repeat(number)
        crystal.rattle(0.1, seed=1)
        crystal.pbc = periodic
        if positions is not None:
            crystal.positions = positions
        i, j, shifts = neighbor_list("ijS", crystal, CUTOFF)
        parts.append({
            "pos": crystal.positions, "kind": np.arange(len(crystal)) % 3, "cell": crystal.cell.array[None],
            "volume": [crystal.get_volume()], "centres": i + first, "others": j + first, "shifts": shifts + 0.0,
            "offsets": shifts @ crystal.cell.array, "batch": np.full(len(crystal), len(parts)), "ptr": [first],
        })  # fmt: skip
        first += len(crystal)
    parts.append({"ptr": [first]})
    joined = {
        name: torch.tensor(np.concatenate([each[name] for each in parts if name in each]))
        for name in parts[0]
    }
    return SimpleNamespace(**joined)


def atoms_of_ranks(near, comm, whole, x):
    """The same of a rank's own atoms and edges, which no rank has all of; ``whole`` has their kinds and the cell."""
    own, edge_index = near.owned_ids, dgcl.as_rows(comm.local_graph("pyg").edge_index, comm)
    shifts = dgcl.as_rows(comm.dispatch_edges(near.shifts), edge_index)
    return SimpleNamespace(
        pos=dgcl.as_rows(x, comm), kind=dgcl.as_rows(whole.kind[own], comm), cell=whole.cell, volume=whole.volume,
        centres=edge_index[1], others=edge_index[0], shifts=shifts, offsets=shifts @ whole.cell[0],
        batch=dgcl.as_rows(whole.batch[own], comm), ptr=whole.ptr,
    )  # fmt: skip


class Client(NamedTuple):
    """A library of potentials, or of models on meshes.

    Attributes:
        modules: What has to be importable.
        package: Its name on PyPI.
        make: The model.
        data: Of ``atoms`` what the model is given.
        evaluate: Of the model and its data energy, forces, stress, and energies of atoms, as far as it gives them; or
            the output.
        options: Of ``dgcl.dispatch``.
        dtype: What the library computes in.
        tolerance: How far from one device.
        lines: How many change.
        is_spread: Whether it can be given rows of :func:`atoms_of_ranks`.
    """

    modules: str
    package: str
    make: object
    data: object
    evaluate: object
    options: dict = {}  # noqa: RUF012
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-9
    lines: int = 3
    is_spread: bool = True


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
        "positions": a.pos, "node_attrs": nn.functional.one_hot(a.kind, 3).double(), "cell": a.cell.reshape(-1, 3),
        "edge_index": torch.stack([a.others, a.centres]), "unit_shifts": -a.shifts, "shifts": -a.offsets,
        "batch": a.batch, "ptr": a.ptr,
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
        "_offsets": a.offsets, "_cell": a.cell, "_idx_m": a.batch, "_n_atoms": a.ptr.diff(),
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


def allegro():
    from allegro.model import AllegroModel
    from nequip.utils.global_state import set_global_state

    set_global_state()
    embed = {"_target_": "allegro.nn.TwoBodyBesselScalarEmbed", "num_bessels": 4}
    return AllegroModel(
        seed=0, model_dtype="float64", r_max=CUTOFF, type_names=["H", "C", "O"], l_max=1, num_layers=2,
        radial_chemical_embed=embed, num_scalar_features=4, num_tensor_features=4, avg_num_neighbors=12.0,
        compile_mode="eager", allegro_mlp_hidden_layers_width=8, readout_mlp_hidden_layers_width=8,
        radial_chemical_embed_dim=4, scalar_embed_mlp_hidden_layers_width=8,
    )  # fmt: skip


def nequip_data(a):
    return {
        "pos": a.pos, "atom_types": a.kind, "edge_index": torch.stack([a.centres, a.others]),
        "edge_cell_shift": a.shifts, "cell": a.cell, "batch": a.batch, "num_atoms": a.ptr.diff(),
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
        "edge_index": torch.stack([a.centres, a.others]), "cell_lattice_vectors": a.cell.reshape(-1, 3),
        "pbc_shift": a.shifts, "cell_volume": a.volume, "batch": a.batch, "num_atoms": a.ptr.diff(),
        "edge_vec": a.pos[a.others] - a.pos[a.centres] + a.offsets,
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
MACE = "mace", "mace-torch"
PYG = "torch_geometric", "torch_geometric"
SCHNETPACK = schnetpack_data, schnetpack_evaluate, PAIRS
CLIENTS = {
    "mace": Client(
        *MACE, lambda: mace(atomic_inter_scale=1.5, atomic_inter_shift=0.1), mace_data, mace_evaluate
    ),
    "mace density": Client(
        *MACE, lambda: mace("MACE", "RealAgnosticDensityInteractionBlock"), mace_data, mace_evaluate
    ),
    "schnetpack SchNet": Client("schnetpack", "schnetpack", schnetpack, *SCHNETPACK),
    "schnetpack PaiNN": Client("schnetpack", "schnetpack", lambda: schnetpack("PaiNN"), *SCHNETPACK),
    "nequip": Client("nequip", "nequip", nequip, nequip_data, nequip_evaluate, CENTRE_FIRST),
    "nequip-allegro": Client(
        "allegro", "nequip-allegro", allegro, nequip_data, nequip_evaluate, CENTRE_FIRST
    ),
    "sevenn": Client(
        "sevenn", "sevenn", sevenn, sevenn_data, sevenn_evaluate, CENTRE_FIRST, torch.float32, 1e-4
    ),
    "pyg SchNet": Client(
        *PYG,
        pyg_schnet,
        lambda a: molecule_data(a, loops=False),
        pyg_schnet_evaluate,
        lines=4,
        is_spread=False,
    ),
    "pyg ViSNet": Client(*PYG, visnet, molecule_data, given_evaluate, lines=5, is_spread=False),
    **{
        f"torchmd-net {kind}{suffix}": Client(
            "torchmdnet",
            "torchmd-net",
            lambda kind=kind, change=change: change(torchmd(kind)),
            molecule_data,
            evaluate,
            lines=lines,
            is_spread=False,
        )
        for kind in ("graph-network", "equivariant-transformer", "tensornet")
        for suffix, change, evaluate, lines in (
            ("", lambda model: model, torchmd_evaluate, 3),
            (", given edges", given_edges, given_evaluate, 5),
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


ANEMOI = "anemoi.models", "anemoi-models"
PHYSICSNEMO = "physicsnemo", "nvidia-physicsnemo"
MESHES = {
    "anemoi GraphTransformerProcessor": Client(
        *ANEMOI,
        lambda: anemoi("GraphTransformerProcessor", num_heads=2, graph_attention_backend="pyg"),
        None,
        anemoi_call,
    ),
    "anemoi GNNProcessor": Client(
        *ANEMOI, lambda: anemoi("GNNProcessor", mlp_extra_layers=0), None, anemoi_call
    ),
    "physicsnemo MeshGraphNet": Client(*PHYSICSNEMO, physicsnemo, None, physicsnemo_call),
    "physicsnemo MeshGraphNet, concat trick": Client(
        *PHYSICSNEMO, lambda: physicsnemo(do_concat_trick=True), None, physicsnemo_call
    ),
}
