"""Programs as strangers write them for one device; none of them knows of ranks.

Each returns all the numbers that it would print, and where training has led.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import models
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import degree, homophily, scatter

from tests.dgcl.rows.harness import Make, Script

NUM_NODES, NUM_EDGES, WIDTH, CLASSES = 90, 310, 6, 4


def graph() -> Data:
    """A directed graph with self loops, parallel edges and isolated vertices; thirty vertices for each of three ranks."""
    gen = torch.Generator().manual_seed(3)
    edges = torch.randint(2, NUM_NODES - 2, (2, NUM_EDGES), generator=gen)
    edges[:, :6] = edges[:1, :6]
    edges[:, 6:12] = edges[:, 12:18]
    kind = torch.rand(NUM_NODES, generator=gen)
    return Data(
        x=torch.randn(NUM_NODES, WIDTH, generator=gen),
        edge_index=edges,
        edge_attr=torch.rand(NUM_EDGES, 2, generator=gen),
        edge_type=torch.arange(NUM_EDGES) % 3,
        y=torch.randint(0, CLASSES, (NUM_NODES,), generator=gen),
        pos=torch.randn(NUM_NODES, 3, generator=gen),
        train_mask=kind < 0.4,
        val_mask=(kind >= 0.4) & (kind < 0.7),
        test_mask=kind >= 0.7,
        edge_label_index=torch.randint(0, NUM_NODES, (2, 80), generator=gen),
        edge_label=(torch.arange(80) % 2).double(),
    )


def hetero() -> HeteroData:
    """Papers, authors who write them, and citations, each with its own sizes."""
    gen, data = torch.Generator().manual_seed(4), HeteroData()
    data["paper"].x, data["author"].x = torch.randn(60, 6, generator=gen), torch.randn(36, 5, generator=gen)
    data["paper"].y = torch.randint(0, CLASSES, (60,), generator=gen)
    data["paper"].train_mask = torch.arange(60) % 3 == 0
    for source, name, target in (("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")):
        sizes = torch.tensor([[len(data[source].x)], [len(data[target].x)]])
        data[source, name, target].edge_index = (torch.rand(2, 130, generator=gen) * sizes).long()
    return data


@dataclass(frozen=True)
class Program:
    """A script, what makes its model and its graph; whether torch's generator is drawn from, which threads share."""

    script: Script
    make: Make
    graph: Callable[[], Any] = graph
    draws: bool = False
    options: dict[str, Any] = field(default_factory=dict)


PROGRAMS: dict[str, Program] = {}


def program(make: Make = lambda data: None, **options: Any) -> Callable[[Script], Script]:
    """Enter a script in the table under its name."""

    def enter(script: Script) -> Script:
        PROGRAMS[script.__name__] = Program(script, make, **options)
        return script

    return enter


def gcn(data: Any) -> nn.Module:
    return pyg.GCN(data.num_features, 16, 2, CLASSES)


def adam(model: nn.Module, loss: Callable[[], Tensor], epochs: int = 10) -> list[float]:
    """Train, and print the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(float(value))
    return losses


def weights(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters())


@program(gcn)
def masks(data, model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    best, since, log = 0.0, 0, []
    for epoch in range(10):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            out = model(data.x, data.edge_index)
        pred = out.argmax(dim=-1)
        split = (data.train_mask, data.val_mask, data.test_mask)
        accuracies = [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in split]
        validation = F.cross_entropy(out[data.val_mask], data.y[data.val_mask])
        scheduler.step(validation)
        log.append(f"{epoch:03d} {loss:.4f} {validation.item():.4f} {accuracies} {scheduler.get_last_lr()}")
        if accuracies[1] > best:
            best, since, best_model = accuracies[1], 0, copy.deepcopy(model)
        elif (since := since + 1) == 5:
            break
    mean = (out.argmax(1) == data.y)[data.test_mask].float().mean().item()
    return {"log": log, "mean": mean, "predictions": best_model(data.x, data.edge_index), "weights": weights(model)}


@program(gcn)
def train_idx(data, model):
    split = {"train": torch.arange(0, data.num_nodes, 3), "valid": torch.arange(1, data.num_nodes, 3)}
    y = data.y.view(-1, 1)
    train = split["train"]
    losses = adam(model, lambda: F.nll_loss(model(data.x, data.edge_index)[train].log_softmax(-1), y.squeeze(1)[train]))
    pred = model.eval()(data.x, data.edge_index).argmax(dim=-1, keepdim=True)
    right = {name: y[ids].cpu().numpy() == pred[ids].cpu().numpy() for name, ids in split.items()}
    confusion = torch.stack([torch.bincount(data.y[pred[:, 0] == k], minlength=CLASSES) for k in range(CLASSES)])
    return {"losses": losses, "accuracies": [float(each.mean()) for each in right.values()], "confusion": confusion}


@program(gcn)
def accumulation_and_clipping(data, model):
    optimizer, log = torch.optim.Adam(model.parameters(), lr=0.02), []
    one = torch.arange(data.num_nodes) == 7  # a mask that is empty on most ranks
    for _ in range(10):
        optimizer.zero_grad()
        for part in range(3):
            out = model(data.x, data.edge_index)
            loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask], label_smoothing=0.1) / 3
            if part:
                wanted = (data.y[data.val_mask] > 1).double()
                loss = loss + 0.5 * F.binary_cross_entropy_with_logits(out[:, 0][data.val_mask], wanted)
            loss.backward(retain_graph=part == 2)
        (F.cross_entropy(out[one], data.y[one]) * 0.1).backward()
        (0.01 * sum(weight.square().sum() for weight in model.parameters())).backward()
        log.append([loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()])
        optimizer.step()
    return {"log": log, "weights": weights(model)}


class Potential(nn.Module):
    """Energies of atoms from distances."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1))
        self.element = nn.Embedding(CLASSES, 3)

    def forward(self, z, pos, edge_index):
        j, i = edge_index
        distance = (pos[i] - pos[j]).square().sum(-1, keepdim=True) + 0.1
        energy = self.mlp(torch.cat([self.element(z)[i], distance.sqrt()], -1)) * (-distance).exp()
        return torch.zeros(len(z), 1).index_add_(0, i, energy)


@program(lambda data: Potential())
def forces(data, model):
    wanted = torch.randn(data.num_nodes, 3, generator=torch.Generator().manual_seed(5))
    pos = data.pos.clone().requires_grad_()

    def loss():
        energy = model(data.y, pos, data.edge_index).sum()
        force = -torch.autograd.grad(energy, pos, create_graph=True)[0]
        return F.mse_loss(force, wanted) + (energy / data.num_nodes - 1.5) ** 2

    return {"losses": adam(model, loss), "gradient": pos.grad, "weights": weights(model)}


def score(z: Tensor, pairs: Tensor) -> Tensor:
    return (z[pairs[0]] * z[pairs[1]]).sum(-1)


@program(gcn)
def link_prediction(data, model):
    def loss():
        out = score(model(data.x, data.edge_index), data.edge_label_index)
        return F.binary_cross_entropy_with_logits(out, data.edge_label)

    losses = adam(model, loss)
    with torch.no_grad():
        out = score(model(data.x, data.edge_index), data.edge_label_index).sigmoid().cpu().numpy()
    above = out[data.edge_label.cpu().numpy() == 1][:, None] > out[data.edge_label.cpu().numpy() == 0]
    return {"losses": losses, "auc": float(above.mean())}


@program(lambda data: models.GAE(pyg.GCNConv(WIDTH, 8)))
def autoencoder(data, model):
    negative = data.edge_label_index[:, :40]
    losses = adam(model, lambda: model.recon_loss(model.encode(data.x, data.edge_index), data.edge_index, negative))
    model.eval()
    z = model.encode(data.x, data.edge_index)
    return {"losses": losses, "decoded": model.decode(z, data.edge_index), "all": (z @ z.t()).sigmoid().mean().item()}


@program(lambda data: models.DeepGraphInfomax(
    8, pyg.GCN(WIDTH, 8, 1), lambda z, *args, **kwargs: z.mean(dim=0).sigmoid(), lambda x, edge_index: (x.flip(0), edge_index)
))  # fmt: skip
def infomax(data, model):
    losses = adam(model, lambda: model.loss(*model(data.x, data.edge_index)))
    z = model(data.x, data.edge_index)[0]
    nearest = torch.cdist(z[data.test_mask], z[data.train_mask]).argmin(1)
    return {"losses": losses, "right": (data.y[data.train_mask][nearest] == data.y[data.test_mask]).float().mean().item()}


@program(gcn)
def contrastive(data, model):
    def loss():
        one, other = (F.normalize(model(data.x * keep, data.edge_index)) for keep in (data.x > 0, data.x < 0.5))
        return F.cross_entropy(one @ other.t() / 0.5, torch.arange(one.size(0)))

    return {"losses": adam(model, loss), "z": model(data.x, data.edge_index)}


@program(lambda data: pyg.MLP([WIDTH, 16, CLASSES], norm=None), draws=True)
def grand(data, model):
    deg = degree(data.edge_index[1], data.num_nodes).clamp(min=1)
    norm = (deg[data.edge_index[0]] * deg[data.edge_index[1]]).rsqrt().view(-1, 1)

    def augmented():
        x = h = data.x * torch.bernoulli(torch.full((data.num_nodes, 1), 0.5))
        for _ in range(3):
            h = scatter(norm * h[data.edge_index[0]], data.edge_index[1], 0, data.num_nodes)
            x = x + h
        return model(x / 4).log_softmax(-1)

    def loss():
        outs = [augmented() for _ in range(2)]
        mean = torch.stack([out.exp() for out in outs]).mean(0)
        sharp = (mean.square() / mean.square().sum(1, keepdim=True)).detach()
        known = sum(F.nll_loss(out[data.train_mask], data.y[data.train_mask]) for out in outs) / 2
        return known + sum((out.exp() - sharp).square().sum(1).mean() for out in outs) / 2

    return {"losses": adam(model, loss, 4), "weights": weights(model)}


class Masked(nn.Module):
    """Labels of some vertices are features of others."""

    def __init__(self):
        super().__init__()
        self.label, self.conv = nn.Embedding(CLASSES, WIDTH), pyg.TransformerConv(WIDTH, CLASSES)

    def forward(self, x, y, edge_index, known):
        x = x.clone()
        x[known] = x[known] + self.label(y[known])
        return self.conv(x, edge_index)


@program(lambda data: Masked(), draws=True)
def label_masking(data, model):
    def loss():
        seen = data.train_mask & (torch.rand_like(data.x[:, 0]) < 0.6)
        wanted = data.train_mask & ~seen
        return F.cross_entropy(model(data.x, data.y, data.edge_index, seen)[wanted], data.y[wanted])

    losses = adam(model, loss)
    negative = data.x[torch.randperm(data.num_nodes)]  # drawn alike after all of training
    return {"losses": losses, "negative": negative, "weights": weights(model)}


@program(lambda data: pyg.MLP([WIDTH, 16, CLASSES], dropout=[0.0, 0.0]))
def correct_and_smooth(data, model):
    losses = adam(model, lambda: F.cross_entropy(model(data.x)[data.train_mask], data.y[data.train_mask]))
    soft = model.eval()(data.x).softmax(dim=-1).detach()
    post = pyg.CorrectAndSmooth(3, 0.8, 3, 0.9, autoscale=False)
    y, mask = data.y[data.train_mask], data.train_mask
    smooth = post.smooth(post.correct(soft, y, mask, data.edge_index), y, mask, data.edge_index)
    spread = pyg.LabelPropagation(num_layers=3, alpha=0.9)(data.y, data.edge_index, mask=mask)
    return {"losses": losses, "smooth": smooth, "spread": spread, "right": (spread.argmax(1) == data.y).sum().item()}


class Table(nn.Module):
    """Vertices without features, relations with bases; built when the number of vertices is known."""

    def __init__(self, num_nodes):
        super().__init__()
        self.first, self.second = pyg.RGCNConv(num_nodes, 8, 3, num_bases=2), pyg.FastRGCNConv(8, CLASSES, 3)

    def forward(self, edge_index, edge_type):
        return self.second(self.first(None, edge_index, edge_type).relu(), edge_index, edge_type)


@program(lambda data: Table(data.num_nodes))
def rgcn(data, model):
    out = functools.partial(model, data.edge_index, data.edge_type)
    losses = adam(model, lambda: F.cross_entropy(out()[data.train_mask], data.y[data.train_mask]))
    return {"losses": losses, "weights": weights(model), "right": float((out().argmax(-1) == data.y).float().mean())}


@program(gcn, graph=lambda: ToSparseTensor(attr=None)(graph()))
def adj_t(data, model):
    losses = adam(model, lambda: F.cross_entropy(model(data.x, data.adj_t)[data.train_mask], data.y[data.train_mask]))
    return {"losses": losses, "out": model(data.x, data.adj_t)}


def of_papers(data, out):
    """A training of predictions for papers."""

    def loss():
        mask = data["paper"].train_mask
        return F.cross_entropy(out()[mask], data["paper"].y[mask])

    return loss


class Typed(nn.Module):
    """Projections of each type, a layer of several types, a head for papers."""

    def __init__(self, data, conv):
        super().__init__()
        self.lin = nn.ModuleDict({kind: nn.Linear(x.size(1), 8) for kind, x in data.x_dict.items()})
        self.conv, self.head = conv, nn.Linear(8, CLASSES)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {kind: self.lin[kind](x).relu() for kind, x in x_dict.items()}
        out = self.conv(x_dict, edge_index_dict)
        return self.head(out["paper"] + x_dict["paper"])


TYPED: dict[str, Callable[[Any], nn.Module]] = {
    "HANConv": lambda data: pyg.HANConv(8, 8, data.metadata(), heads=2),
    "HGTConv": lambda data: pyg.HGTConv(8, 8, data.metadata(), heads=2),
    "HeteroConv": lambda data: pyg.HeteroConv({kind: pyg.SAGEConv((8, 8), 8) for kind in data.edge_types}, "mean"),
    "to_hetero": lambda data: pyg.to_hetero(pyg.GraphSAGE((-1, -1), 8, 2, CLASSES), data.metadata()),
}


def typed(data, model):
    def out():
        every = model(data.x_dict, data.edge_index_dict)
        return every["paper"] if isinstance(every, dict) else every

    losses = adam(model, of_papers(data, out))
    right = (out().argmax(-1) == data["paper"].y)[data["paper"].train_mask].sum().item()
    return {"losses": losses, "right": right, "out": out()}


for name, conv in TYPED.items():
    make = conv if name == "to_hetero" else functools.partial(lambda conv, data: Typed(data, conv(data)), conv)
    PROGRAMS[name] = Program(typed, make, hetero, draws=name == "to_hetero")  # which initializes at its first call


@program(gcn)
def printed(data, model):
    """Lines of all kinds that a script prints, differentiates by, or hands to another library."""
    out = model(data.x, data.edge_index)
    y, mask, (row, col) = data.y, data.test_mask, data.edge_index
    unlabelled = y.clone()
    unlabelled[mask] = -100
    soft = out.softmax(1).detach()
    losses = [
        F.cross_entropy(out, unlabelled),
        F.cross_entropy(out[mask], y[mask], torch.arange(1.0, 5.0), reduction="sum"),
        F.cross_entropy(out, soft),
        F.nll_loss(out.log_softmax(1), unlabelled, reduction="none").mean(),
        F.kl_div(out.log_softmax(1), soft, reduction="batchmean"),
        nn.HuberLoss()(out, data.x[:, :4]),
        F.binary_cross_entropy_with_logits(out, F.one_hot(y, 4).double(), pos_weight=torch.ones(4)),
        nn.CosineEmbeddingLoss()(out, data.x[:, :4], (y > 1) * 2.0 - 1),
        nn.TripletMarginLoss()(out, out.roll(1, 0), out.flip(0)),
    ]
    sum(losses).backward()
    with torch.no_grad():
        numbers = [
            out.sum(0) / len(out), out.std(0), out.norm(), out.max(0).values, out.max(0).indices, out.median(0)[0],
            out.topk(3, 0)[0], out.quantile(0.3, 0), torch.bincount(y), y.unique(), y.max() + 1, out.T @ out, out[0], out[-3:],
            out[mask][y[mask] == 1].sum(0), 1 / torch.bincount(y).float(), (row < col).sum(), homophily(data.edge_index, y),
            data.edge_index.max() + 1, (out > 0).any(0), torch.corrcoef(out.t()), torch.linalg.svdvals(out), torch.histc(out, 5),
            mask.nonzero().view(-1), torch.where(y == 2)[0], out[out > 0].mean(), data.edge_index[:, data.edge_attr[:, 0] > 0.5],
        ]  # fmt: skip
        text = f"{out.mean():.6f} {len(out)} {tuple(out.shape)} {out.dtype} {mask.sum()} {int(y[3])} {data.num_nodes} {data.num_edges}"
    others = [out.tolist(), sum(float(value) for value in y), bool((out > -99).all()), torch.from_numpy(out.detach().numpy().T)]
    gradients = [weight.grad for weight in model.parameters()]
    return {"losses": losses, "numbers": numbers, "text": text, "others": others, "gradients": gradients}
