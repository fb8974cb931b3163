"""Finds the modules of a model that give other numbers on several ranks than on one device.

Modules are known by the package and name of their class, so neither PyG nor DGL is imported; subclasses count.
A layer of one's own is not known here: :func:`dgcl.testing.assert_equivalent` tries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch.nn import BatchNorm1d, Module

from dgcl.nn.arguments import current, require_module
from dgcl.ranks.warned import warn_once
from dgcl.topology.checks import check_choice

if TYPE_CHECKING:
    from dgcl.communicator import Communicator


OnInexact = Literal["warn", "raise", "ignore"]


@dataclass(frozen=True)
class Finding:
    """A module that is not exact on several ranks.

    Attributes:
        name: Where it is in the model; "" for the model itself.
        module: Its class, as ``torch_geometric.nn.GCNConv``.
        why: What it does.
        instead: What to write.
        random: It draws random numbers of its own on each rank: right on average, but not the numbers of one device.
    """

    name: str
    module: str
    why: str
    instead: str
    random: bool = False

    def __str__(self) -> str:
        return f"{self.name or 'the model'} ({self.module}) {self.why}; {self.instead}"


_HOPS = "goes several hops, through rows that no rank has sent"
_DEGREES = "normalises by the degrees that it counts, which are those of this rank's edges"
_ROWS = "takes statistics over this rank's rows alone"
_ALL = "looks at the rows of all vertices, and sees this rank's alone"
_RANDOM = "draws other random numbers on each rank"
_BY_SUMS = "compute it with dgcl.nn.global_sum (docs/frameworks.md, Losses)"


def _uses_own_statistics(norm: Any) -> Any:
    return norm.training or not norm.track_running_stats


def _draws(dropout: Any) -> Any:
    return dropout.training and dropout.p > 0


def _draws_inside(layer: Any) -> Any:
    """Whether a layer of PyG, or one of its levels, drops elements by itself."""
    levels = layer.dropout if isinstance(layer.dropout, (list, tuple)) else [layer.dropout]
    return layer.training and max(levels, default=0) > 0


@dataclass(frozen=True)
class _Rule:
    """What a class does. ``distributed``: once :func:`dgcl.distribute` had it, it is exact."""

    why: str
    instead: str = "dgcl.distribute(model) makes it exact"
    applies: Callable[[Any], Any] = lambda module: True
    random: bool = False
    distributed: bool = True


_refused = partial(_Rule, distributed=False)

_BATCH_NORM = _Rule(_ROWS, applies=_uses_own_statistics)
_SEVERAL = _Rule(_HOPS)
_GLOBAL = _refused(_ALL, _BY_SUMS)


_ONE_DIMENSION = _refused(_ROWS, "take BatchNorm1d", _uses_own_statistics)


def _other(names: str, rule: _Rule) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES: dict[str, dict[str, _Rule]] = {
    "torch": {
        "BatchNorm1d": _BATCH_NORM,
        "Dropout": _Rule(_RANDOM, applies=_draws, random=True),
        **_other(
            "AlphaDropout FeatureAlphaDropout Dropout1d",
            _refused(_RANDOM, "take torch.nn.Dropout", _draws, random=True),
        ),
        "RReLU": _refused(_RANDOM, "take torch.nn.LeakyReLU", lambda module: module.training, True),
        **_other("_BatchNorm SyncBatchNorm LazyBatchNorm1d BatchNorm2d BatchNorm3d", _ONE_DIMENSION),
    },
    "torch_geometric": {
        **_other(
            "GCNConv LGConv GCN2Conv FAConv PDNConv DNAConv",
            _Rule(_DEGREES, applies=lambda conv: getattr(conv, "normalize", False)),
        ),
        **_other("SGConv SSGConv TAGConv ChebConv ARMAConv MixHopConv GatedGraphConv APPNP", _SEVERAL),
        "AntiSymmetricConv": _SEVERAL,
        **_other("PANConv CorrectAndSmooth LabelPropagation", _refused(_HOPS, "write the hops")),
        "EGConv": _Rule(_DEGREES, applies=lambda conv: "symnorm" in conv.aggregators),
        **_other("GraphNorm PairNorm MeanSubtractionNorm GraphSizeNorm", _Rule(_ROWS)),
        "LayerNorm": _Rule(_ROWS, applies=lambda norm: norm.mode == "graph"),
        **_other("InstanceNorm HeteroBatchNorm", _refused(_ROWS, "take BatchNorm")),
        **_other(
            "GATConv GATv2Conv TransformerConv HEATConv RGATConv MLP DeepGCNLayer",
            _Rule(_RANDOM, applies=_draws_inside, random=True),
        ),
        "SuperGATConv": _refused(
            "draws negative edges among this rank's rows",
            "take GATv2Conv",
            lambda module: module.training,
            True,
        ),
        **_other(
            "GPSConv GravNetConv DynamicEdgeConv XConv WLConv MeshCNNConv HypergraphConv"
            " SGFormer Polynormer AttentiveFP NeuralFingerprint SchNet DimeNet ViSNet GNNFF GPSE",
            _GLOBAL,
        ),
        **_other(
            "TopKPooling SAGPooling ASAPooling EdgePooling MemPooling ClusterPooling PANPooling",
            _refused(_ALL, "read all rows out, with dgcl.nn.global_mean_pool and its kin"),
        ),
        **_other(
            "LSTMAggregation GRUAggregation PatchTransformerAggregation LCMAggregation",
            _refused(
                "pads in-edges to the largest in-degree of this rank's vertices",
                "take a sum, mean, maximum or softmax",
            ),
        ),
        **_other(
            "HGTConv FastHGTConv HANConv",
            _refused(
                "puts rows of all types one after the other, and finds sources by this rank's numbers of them",
                "take a layer for each edge type (HeteroConv)",
            ),
        ),
        "DirGNNConv": _refused(
            "sums over edges turned round, which are on other ranks",
            "dispatch the graph turned round, too, and take a layer for each direction",
        ),
        "FastRGCNConv": _refused("finds weights by this rank's numbers of sources", "take RGCNConv"),
        "BasicGNN": _Rule(_HOPS, "call dgcl.distribute(model)", lambda model: model.num_layers > 1),
        **_other(
            "LINKX LightGCN Node2Vec MetaPath2Vec",
            _refused(
                "has a row of parameters for each vertex of the whole graph",
                "take rows of features, dgcl.dispatch_features(embedding)",
            ),
        ),
    },
    "dgl": {
        "EdgeWeightNorm": _refused(_DEGREES, "use it on rank 0, and hand its result out with dispatch_edges"),
        **_other(
            "PNAConv DGNConv ChebConv TWIRLSConv TWIRLSUnfoldingAndAttention"
            " SumPooling AvgPooling MaxPooling SortPooling WeightAndSum GlobalAttentionPooling"
            " Set2Set SetTransformerEncoder SetTransformerDecoder",
            _GLOBAL,
        ),
        "GatedGraphConv": _refused(
            "takes the edges of each kind apart, which not every rank may have",
            "take RelGraphConv, or a layer for each kind",
            lambda layer: layer._n_etypes > 1,
        ),
    },
}


def check_model(model: Module, comm: Communicator | None = None) -> list[Finding]:
    """Find the modules that give other numbers on these ranks than on one device. Not collective.

        >>> for finding in dgcl.check_model(model):
        ...     print(finding)

    Runs by itself in :func:`dgcl.nn.broadcast_parameters`. Knows classes of PyG, DGL and torch by name and
    arguments; what a forward of your own does with them, :func:`dgcl.testing.assert_equivalent` finds out.

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
    return _findings(model, lambda module, rule: True)


def inexact_in_part(model: Module) -> list[Finding]:
    """The modules, of ours too, that need more than some vertices and their in-neighbours."""
    return _findings(model, lambda module, rule: not rule.random, ours=True)


def refusals(model: Module, *, training: bool = False) -> list[Finding]:
    """The modules of a model that :func:`dgcl.distribute` cannot make exact; those too that cannot be in training."""
    return _findings(
        model,
        lambda module, rule: (
            not rule.distributed or (rule is _BATCH_NORM and type(module) is not BatchNorm1d)
        ),
        training,
    )


def _findings(
    model: Module, which: Callable[[Module, _Rule], bool], training: bool = False, ours: bool = False
) -> list[Finding]:
    findings = []
    for name, module in model.named_modules():
        known = _rule_of(type(module), ours)
        mode = module.training
        module.training = mode or training
        applies = known is not None and which(module, known[1]) and known[1].applies(module)
        module.training = mode
        if known is not None and applies:
            kind, rule = known
            findings.append(Finding(name, kind, rule.why, rule.instead, rule.random))
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
