"""Finds the modules of a model that give other numbers on several ranks than on one device.

Modules are known by the package and name of their class, so neither PyG nor DGL is imported; subclasses count. A layer
of one's own is not known here: ``dgcl.distribute`` compares its first call with one device.
Called by users (``dgcl.check_model``), `gradients` and `dgcl/offload/refusals`. Free to change while exactly the
modules are named whose outputs differ when they run on ranks, random ones apart (`tests/dgcl/nn/test_inexact.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch.nn import Module

from dgcl.communicator import Communicator
from dgcl.nn.layer_arguments import current, require_module
from dgcl.ranks.warned import warn_once
from dgcl.topology.checks import check_choice

OnInexact = Literal["warn", "raise", "ignore"]


@dataclass(frozen=True)
class Finding:
    """A module that is not exact on several ranks.

    Attributes:
        name: Where it is in the model; "" for the model itself.
        module: Its class, as ``torch_geometric.nn.GCNConv``.
        why: What it does.
        random: It draws random numbers of its own on each rank: right on average, but not the numbers of one device.
    """

    name: str
    module: str
    why: str
    random: bool = False

    def __str__(self) -> str:
        return f"{self.name or 'the model'} ({self.module}) {self.why}; {_INSTEAD}"


_INSTEAD = "dgcl.dispatch(data) and dgcl.distribute(model) make it exact"
_HOPS = "goes several hops, through rows that no rank has sent"
_DEGREES = "normalises by the degrees that it counts, which are those of this rank's edges"
_ROWS = "takes statistics over this rank's rows alone"
_ALL = "looks at the rows of all vertices, and sees this rank's alone"
_RANDOM = "draws other random numbers on each rank"


def _draws_inside(layer: Any) -> Any:
    """Whether a layer of PyG, or one of its levels, drops elements by itself."""
    levels = layer.dropout if isinstance(layer.dropout, (list, tuple)) else [layer.dropout]
    return layer.training and max(levels, default=0) > 0


@dataclass(frozen=True)
class _Rule:
    """What a class does."""

    why: str
    applies: Callable[[Any], Any] = lambda module: True
    random: bool = False


def _all(names: str, *rule: Any) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), _Rule(*rule))


_RULES: dict[str, dict[str, _Rule]] = {
    "torch": _all(
        "Dropout AlphaDropout FeatureAlphaDropout Dropout1d",
        _RANDOM,
        lambda dropout: dropout.training and dropout.p > 0,
        True,
    )
    | _all("RReLU", _RANDOM, lambda module: module.training, True)
    | _all(
        "BatchNorm1d _BatchNorm SyncBatchNorm LazyBatchNorm1d BatchNorm2d BatchNorm3d",
        _ROWS,
        lambda norm: norm.training or not norm.track_running_stats,
    ),
    "torch_geometric": _all(
        "GCNConv LGConv GCN2Conv FAConv PDNConv DNAConv",
        _DEGREES,
        lambda conv: getattr(conv, "normalize", False),
    )
    | _all("EGConv", _DEGREES, lambda conv: "symnorm" in conv.aggregators)
    | _all(
        "SGConv SSGConv TAGConv ChebConv ARMAConv MixHopConv GatedGraphConv APPNP AntiSymmetricConv PANConv"
        " CorrectAndSmooth LabelPropagation",
        _HOPS,
    )
    | _all("BasicGNN", _HOPS, lambda model: model.num_layers > 1)
    | _all("GraphNorm PairNorm MeanSubtractionNorm GraphSizeNorm InstanceNorm HeteroBatchNorm", _ROWS)
    | _all("LayerNorm", _ROWS, lambda norm: norm.mode == "graph")
    | _all(
        "GATConv GATv2Conv TransformerConv HEATConv RGATConv MLP DeepGCNLayer", _RANDOM, _draws_inside, True
    )
    | _all("SuperGATConv", _RANDOM, lambda module: module.training, True)
    | _all(
        "GPSConv GravNetConv DynamicEdgeConv XConv WLConv MeshCNNConv HypergraphConv SGFormer Polynormer"
        " AttentiveFP NeuralFingerprint SchNet DimeNet ViSNet GNNFF GPSE TopKPooling SAGPooling ASAPooling"
        " EdgePooling MemPooling ClusterPooling PANPooling LSTMAggregation GRUAggregation"
        " PatchTransformerAggregation LCMAggregation HGTConv FastHGTConv HANConv DirGNNConv FastRGCNConv LINKX"
        " LightGCN Node2Vec MetaPath2Vec",
        _ALL,
    ),
    "dgl": _all("EdgeWeightNorm", _DEGREES)
    | _all(
        "PNAConv DGNConv ChebConv TWIRLSConv TWIRLSUnfoldingAndAttention SumPooling AvgPooling MaxPooling"
        " SortPooling WeightAndSum GlobalAttentionPooling Set2Set SetTransformerEncoder SetTransformerDecoder",
        _ALL,
    )
    | _all("GatedGraphConv", _ALL, lambda layer: layer._n_etypes > 1),
}


def check_model(model: Module, comm: Communicator | None = None) -> list[Finding]:
    """Find the modules that give other numbers on these ranks than on one device. Not collective.

        >>> for finding in dgcl.check_model(model):
        ...     print(finding)

    Runs by itself in :func:`dgcl.nn.broadcast_parameters`. Knows classes of PyG, DGL and torch by name and
    arguments; what a forward of your own does with them is compared by :func:`dgcl.distribute` alone.

    Args:
        model: In the mode (``train()`` or ``eval()``) in which it will run.
        comm: The communicator; default the current one. On a single rank everything is exact.

    Returns:
        What is not exact, in the model's order; those that are merely random have ``random`` set.
    """
    require_module(model)
    comm = current(comm)
    if comm.world_size == 1:
        return []
    return _findings(model)


def inexact_in_part(model: Module) -> list[Finding]:
    """The modules, of ours too, that need more than some vertices and their in-neighbours."""
    return [each for each in _findings(model, ours=True) if not each.random]


def _findings(model: Module, ours: bool = False) -> list[Finding]:
    findings = []
    for name, module in model.named_modules():
        known = _rule_of(type(module), ours)
        if known is not None and known[1].applies(module):
            kind, rule = known
            findings.append(Finding(name, kind, rule.why, rule.random))
    return findings


def _rule_of(kind: type, ours: bool) -> tuple[str, _Rule] | None:
    """The rule of the first class of these that has one; not if a class of ours comes before it, unless ``ours``."""
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package == "dgcl" and not ours:
            return None
        rule = _RULES.get(package, {}).get(base.__name__)
        if rule is not None:
            return f"{package}.nn.{base.__name__}", rule
    return None


def report_inexact(model: Module, comm: Communicator, how: OnInexact) -> None:
    """Warn (once, on rank 0) or raise on every rank where a model has modules that are not exact."""
    check_choice(how, "inexact", ("warn", "raise", "ignore"))
    findings = [] if how == "ignore" else [each for each in check_model(model, comm) if not each.random]
    if not findings:
        return
    lines = "".join(f"\n  {finding}" for finding in findings)
    text = f"the model gives other numbers on {comm.world_size} ranks than on one device:{lines}"
    if how == "raise":
        raise ValueError(text)
    warn_once(comm, f"{text}\nbroadcast_parameters(model, inexact='ignore') leaves this out")
