"""Programs as strangers write them for one device; none of them knows of ranks.

Each returns all the numbers that it would print, and where training has led.
"""

import copy

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import models
from torch_geometric.utils import degree, scatter

from tests.support.rows_harness import value_of

N, E, WIDTH, CLASSES = 90, 310, 6, 4


def graph():
    """A directed graph with self loops, parallel edges and isolated vertices; thirty for each of three ranks."""
    gen = torch.Generator().manual_seed(3)
    edges = torch.randint(2, N - 2, (2, E), generator=gen)
    edges[:, :6] = edges[:1, :6]
    edges[:, 6:12] = edges[:, 12:18]
    third = torch.randint(0, 3, (N,), generator=gen)
    return Data(
        x=torch.randn(N, WIDTH, generator=gen), edge_index=edges, edge_attr=torch.rand(E, 2, generator=gen),
        edge_type=torch.arange(E) % 3, y=torch.randint(0, CLASSES, (N,), generator=gen),
        pos=torch.randn(N, 3, generator=gen), train_mask=third == 0, val_mask=third == 1, test_mask=third == 2,
        edge_label_index=torch.randint(0, N, (2, 80), generator=gen), edge_label=torch.arange(80) % 2 * 1.0,
    )  # fmt: skip


def hetero():
    """Papers, authors who write them, and citations."""
    gen, data = torch.Generator().manual_seed(4), HeteroData()
    data["paper"].x, data["author"].x = torch.randn(60, 6, generator=gen), torch.randn(36, 5, generator=gen)
    data["paper"].y, data["paper"].train_mask = torch.arange(60) % 7 % CLASSES, torch.arange(60) % 3 == 0
    for source, name, target in (
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("paper", "by", "author"),
    ):
        sizes = torch.tensor([[len(data[source].x)], [len(data[target].x)]])
        data[source, name, target].edge_index = (torch.rand(2, 130, generator=gen) * sizes).long()
    return data


PROGRAMS = {}

#: Those that draw random numbers, for which ranks must be processes.
DRAWS = {"grand", "label_masking", "to_hetero"}


def program(make, graph=graph):
    """Enter a script in the table, with what makes its model and its graph."""

    def enter(script):
        PROGRAMS[script.__name__] = script, make, graph
        return script

    return enter


def gcn(data):
    return pyg.GCN(WIDTH, 16, 2, CLASSES)


def adam(model, loss):
    """Train, and print the losses."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for _ in range(10):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(float(value))
    return losses


def fit(model, out, y, mask):
    """Learn labels, and print losses, predictions and how many are right."""
    losses = adam(model, lambda: F.cross_entropy(out()[mask], y[mask]))
    model.eval()
    right = (out().argmax(-1) == y)[mask].sum().item()
    gradients = [weight.grad for weight in model.parameters()]
    return {
        "losses": losses,
        "out": out(),
        "right": right,
        "gradients": gradients,
        "buffers": list(model.buffers()),
    }


@program(gcn)
def masks(data, model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", 0.5, 0)
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
        right = out.argmax(dim=-1) == data.y
        accuracies = [
            int(right[m].sum()) / int(m.sum()) for m in (data.train_mask, data.val_mask, data.test_mask)
        ]
        validation = F.cross_entropy(out[data.val_mask], data.y[data.val_mask])
        scheduler.step(validation)
        log.append(f"{epoch:03d} {loss:.4f} {validation.item():.4f} {accuracies} {scheduler.get_last_lr()}")
        if accuracies[1] > best:
            best, since, best_model = accuracies[1], 0, copy.deepcopy(model)
        elif (since := since + 1) == 5:
            break
    return {
        "log": log,
        "mean": right.float().mean().item(),
        "predictions": best_model(data.x, data.edge_index),
    }


@program(gcn)
def train_idx(data, model):
    train, valid = torch.arange(0, data.num_nodes, 3), torch.arange(1, data.num_nodes, 3)
    y = data.y.view(-1, 1)
    losses = adam(
        model, lambda: F.nll_loss(model(data.x, data.edge_index)[train].log_softmax(-1), y.squeeze(1)[train])
    )
    pred = model.eval()(data.x, data.edge_index).argmax(dim=-1, keepdim=True)
    right = y[valid].cpu().numpy() == pred[valid].cpu().numpy()
    return {
        "losses": losses,
        "accuracy": float(right.mean()),
        "confusion": torch.bincount(data.y * CLASSES + pred[:, 0]),
    }


@program(gcn)
def accumulation_and_clipping(data, model):
    optimizer, log = torch.optim.Adam(model.parameters(), lr=0.02), []
    one = torch.arange(data.num_nodes) == 7  # a mask that is empty on most ranks
    for _ in range(10):
        optimizer.zero_grad()
        for part in range(3):
            out = model(data.x, data.edge_index)
            loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask], label_smoothing=0.1) / 3
            wanted = (data.y[data.val_mask] > 1).double()
            loss = loss + part * F.binary_cross_entropy_with_logits(out[:, 0][data.val_mask], wanted)
            loss.backward(retain_graph=part == 2)
        (F.cross_entropy(out[one], data.y[one]) * 0.1).backward()
        (0.01 * sum(weight.square().sum() for weight in model.parameters())).backward()
        log.append([loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()])
        optimizer.step()
    return {"log": log, "weights": list(model.parameters())}


class Potential(nn.Module):
    """Energies of atoms from distances."""

    def __init__(self, data):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1))
        self.element = nn.Embedding(CLASSES, 3)

    def forward(self, z, pos, edge_index):
        j, i = edge_index
        distance = (pos[i] - pos[j]).square().sum(-1, keepdim=True) + 0.1
        energy = self.mlp(torch.cat([self.element(z)[i], distance.sqrt()], -1)) * (-distance).exp()
        return torch.zeros(len(z), 1).index_add_(0, i, energy)


@program(Potential)
def forces(data, model):
    wanted = torch.randn(data.num_nodes, 3, generator=torch.Generator().manual_seed(5))
    pos = data.pos.clone().requires_grad_()

    def loss(of_energy=1):
        energy = model(data.y, pos, data.edge_index).sum()
        force = -torch.autograd.grad(energy, pos, create_graph=True)[0]
        loss = F.mse_loss(force, wanted)
        return loss + (energy / data.num_nodes - 1.5) ** 2 if of_energy else loss

    losses, gradient = adam(model, loss), pos.grad
    model.zero_grad()
    loss(of_energy=0).backward()
    alone = [each.grad for each in model.parameters()]
    return {
        "losses": losses,
        "gradient": gradient,
        "forces alone": alone,
        "weights": list(model.parameters()),
    }


@program(gcn)
def link_prediction(data, model):
    def scores():
        z = model(data.x, data.edge_index)
        return (z[data.edge_label_index[0]] * z[data.edge_label_index[1]]).sum(-1)

    losses = adam(model, lambda: F.binary_cross_entropy_with_logits(scores(), data.edge_label))
    out, label = scores().detach().sigmoid().cpu().numpy(), data.edge_label.cpu().numpy()
    return {"losses": losses, "auc": float((out[label == 1][:, None] > out[label == 0]).mean())}


@program(lambda data: models.GAE(pyg.GCNConv(WIDTH, 8)))
def autoencoder(data, model):
    negative = data.edge_label_index[:, :40]
    losses = adam(
        model, lambda: model.recon_loss(model.encode(data.x, data.edge_index), data.edge_index, negative)
    )
    z = model.eval().encode(data.x, data.edge_index)
    return {
        "losses": losses,
        "decoded": model.decode(z, data.edge_index),
        "all": (z @ z.t()).sigmoid().mean().item(),
    }


@program(lambda data: models.DeepGraphInfomax(
    8, pyg.GCN(WIDTH, 8, 1), lambda z, *rest: z.mean(dim=0).sigmoid(), lambda x, edge_index: (x.flip(0), edge_index)
))  # fmt: skip
def infomax(data, model):
    losses = adam(model, lambda: model.loss(*model(data.x, data.edge_index)))
    z = model(data.x, data.edge_index)[0]
    nearest = torch.cdist(z[data.test_mask], z[data.train_mask]).argmin(1)
    return {
        "losses": losses,
        "right": (data.y[data.train_mask][nearest] == data.y[data.test_mask]).float().mean().item(),
    }


@program(gcn)
def contrastive(data, model):
    def loss():
        one, other = (
            F.normalize(model(data.x * keep, data.edge_index)) for keep in (data.x > 0, data.x < 0.5)
        )
        return F.cross_entropy(one @ other.t() / 0.5, torch.arange(one.size(0)))

    return {"losses": adam(model, loss), "z": model(data.x, data.edge_index)}


@program(lambda data: nn.Linear(WIDTH, CLASSES))
def grand(data, model):
    row, col = data.edge_index
    deg = degree(col, data.num_nodes).clamp(min=1)

    def augmented():
        h = data.x * torch.bernoulli(torch.full((data.num_nodes, 1), 0.5))
        return model(
            h + scatter((deg[row] * deg[col]).rsqrt().view(-1, 1) * h[row], col, 0, data.num_nodes)
        ).softmax(-1)

    def loss():
        outs = torch.stack([augmented(), augmented()])
        sharp = outs.mean(0).square().detach()
        known = F.nll_loss(outs.mean(0).log()[data.train_mask], data.y[data.train_mask])
        return known + (outs - sharp / sharp.sum(1, keepdim=True)).square().sum(-1).mean()

    return {"losses": adam(model, loss), "weights": list(model.parameters())}


@program(lambda data: nn.ModuleList([nn.Embedding(CLASSES, WIDTH), pyg.TransformerConv(WIDTH, CLASSES)]))
def label_masking(data, model):
    """Labels of some vertices are features of others."""

    def loss():
        x = data.x.clone()
        seen = data.train_mask & (torch.rand_like(x[:, 0]) < 0.6)
        x[seen] = x[seen] + model[0](data.y[seen])
        wanted = data.train_mask & ~seen
        return F.cross_entropy(model[1](x, data.edge_index)[wanted], data.y[wanted])

    return {"losses": adam(model, loss), "drawn alike after all": data.x[torch.randperm(data.num_nodes)]}


@program(lambda data: pyg.MLP([WIDTH, 16, CLASSES], norm=None))
def correct_and_smooth(data, model):
    mask, known = data.train_mask, data.y[data.train_mask]
    fitted = fit(model, lambda: model(data.x), data.y, mask)
    post = pyg.CorrectAndSmooth(3, 0.8, 3, 0.9, autoscale=False)
    corrected = post.correct(fitted["out"].softmax(dim=-1).detach(), known, mask, data.edge_index)
    spread = pyg.LabelPropagation(num_layers=3, alpha=0.9)(data.y, data.edge_index, mask=mask)
    return {**fitted, "smooth": post.smooth(corrected, known, mask, data.edge_index), "spread": spread}


@program(
    lambda data: nn.ModuleList(
        [pyg.RGCNConv(data.num_nodes, 8, 3, num_bases=2), pyg.FastRGCNConv(8, CLASSES, 3)]
    )
)
def rgcn(data, model):
    """Vertices without features; a model that is built when their number is known."""

    def out():
        return model[1](
            model[0](None, data.edge_index, data.edge_type).relu(), data.edge_index, data.edge_type
        )

    return fit(model, out, data.y, data.train_mask)


class Typed(nn.Module):
    """Projections of each type, a layer of several types, a head for papers."""

    def __init__(self, conv):
        super().__init__()
        self.lin = nn.ModuleDict({"paper": nn.Linear(6, 8), "author": nn.Linear(5, 8)})
        self.conv, self.head = conv, nn.Linear(8, CLASSES)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {kind: self.lin[kind](x).relu() for kind, x in x_dict.items()}
        return {"paper": self.head(self.conv(x_dict, edge_index_dict)["paper"] + x_dict["paper"])}


def typed(data, model):
    out = lambda: model(data.x_dict, data.edge_index_dict)["paper"]  # noqa: E731
    return fit(model, out, data["paper"].y, data["paper"].train_mask)


PROGRAMS |= {
    "HANConv": (typed, lambda data: Typed(pyg.HANConv(8, 8, data.metadata(), heads=2)), hetero),
    "HGTConv": (typed, lambda data: Typed(pyg.HGTConv(8, 8, data.metadata(), heads=2)), hetero),
    "HeteroConv": (
        typed, lambda data: Typed(pyg.HeteroConv({kind: pyg.SAGEConv((8, 8), 8) for kind in data.edge_types})), hetero
    ),
    "to_hetero": (
        typed, lambda data: pyg.to_hetero(pyg.GraphSAGE((-1, -1), 8, 2, CLASSES), data.metadata()), hetero
    ),
}  # fmt: skip

LOSSES = [
    "F.cross_entropy(out, torch.where(mask, -100, y))",
    "F.cross_entropy(out[mask], y[mask], torch.arange(1.0, 5.0), reduction='sum')",
    "F.cross_entropy(out, out.softmax(1).detach())",
    "F.nll_loss(out.log_softmax(1), torch.where(mask, -100, y), reduction='none').mean()",
    "F.kl_div(out.log_softmax(1), x[:, :4].softmax(1), reduction='batchmean')",
    "nn.HuberLoss()(out, x[:, :4])",
    "F.binary_cross_entropy_with_logits(out, F.one_hot(y, 4).double(), pos_weight=torch.ones(4))",
    "nn.CosineEmbeddingLoss()(out, x[:, :4], (y > 1) * 2.0 - 1)",
    "nn.TripletMarginLoss()(out, out.roll(1, 0), out.flip(0))",
]
LINES = [
    "out.sum(0) / len(out)", "out.T @ out", "out[-3:]", "out[mask][y[mask] == 1].sum(0)",
    "1 / torch.bincount(y).float()",
    "(edge_index[0] < edge_index[1]).sum()", "utils.homophily(edge_index, y)", "edge_index.max() + 1",
    "torch.where(y == 2)[0]",
    "torch.corrcoef(out.t())", "mask.nonzero().view(-1)", "out[out > 0].mean()", "edge_index[:, edge_attr[:, 0] > 0.5]",
    "f'{out.mean():.6f} {len(out)} {tuple(out.shape)} {out.dtype} {mask.sum()} {int(y[3])}'", "out.tolist()",
    "sum(float(value) for value in y)", "bool((out > -99).all())", "torch.from_numpy(out.detach().numpy().T)",
]  # fmt: skip


@program(gcn)
def printed(data, model):
    """Lines of all kinds that a script prints, differentiates by, or hands to another library."""
    names = {**data.to_dict(), "out": model(data.x, data.edge_index), "mask": data.test_mask}
    found = {line: value_of(line, **names) for line in LOSSES + LINES}
    sum(found[line] for line in LOSSES).backward()
    return {
        **found,
        "gradients": [weight.grad for weight in model.parameters()],
        "sizes": [data.num_nodes, data.num_edges],
    }


EDGES = [
    "edge_index.flip(0)", "torch.stack([edge_index[1], edge_index[0]])", "edge_index[[1, 0]]", "edge_index[:, ::2]",
    "edge_index[:, edge_attr[:, 0] > 0.5]", "torch.cat([edge_index, edge_index.flip(0)], 1)", "edge_label_index",
    "edge_index.t().contiguous().t()", "utils.to_undirected(edge_index)",
    "utils.add_self_loops(edge_index, num_nodes=90)[0]",
    "utils.remove_self_loops(edge_index)[0]", "utils.dropout_edge(edge_index, 0.0)[0]",
    "utils.subgraph(y > 0, edge_index)[0]",
]  # fmt: skip


@program(
    lambda data: nn.ModuleList(
        [pyg.SAGEConv(WIDTH, 4, aggr="max"), pyg.GATConv(WIDTH, 4), pyg.GCNConv(WIDTH, 4)]
    )
)
def edges(data, model):
    """Edges that the script makes, for sums by hand and for layers."""
    found = {}
    for line in EDGES:
        x, made = data.x.clone().requires_grad_(), value_of(line, **data.to_dict())
        outs = [torch.zeros_like(x).index_add_(0, made[1], x[made[0]]), *(conv(x, made) for conv in model)]
        sum(out.square().sum() for out in outs).backward()
        found[line] = [*outs, x.grad]
    return found
