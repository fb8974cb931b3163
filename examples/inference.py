"""Predictions for all vertices from a trained model, on any number of ranks.

    torchrun --nproc-per-node=4 examples/inference.py --out predictions.npy
    python examples/inference.py --checkpoint model.pt        # on one rank; the same predictions

A checkpoint is ``model.state_dict()`` of a run on any number of ranks. Without one the parameters are random.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from graphs import Data, planted_communities
from torch import Tensor, nn

import dgcl

WIDTHS = [64, 32, 32]


class Model(nn.Module):
    """Three GraphSAGE layers of dgcl.nn, whose exchanges are inside."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(dgcl.nn.SAGEConv(*pair) for pair in pairwise([*WIDTHS, num_classes]))

    def forward(self, x: Tensor) -> Tensor:
        """``(num_owned, WIDTHS[0])`` to logits ``(num_owned, num_classes)``."""
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def predict(data: Data | None, checkpoint: str | None = None, out: str | None = None) -> Tensor | None:
    """The class of each vertex: on rank 0 ``(num_nodes,)``, or in a file. ``data`` is needed on rank 0 only."""
    comm = dgcl.build_comm_info(data and data.graph)
    x = dgcl.dispatch_features(data and data.features.float())
    num_classes = comm.control.broadcast(data and data.num_classes)

    torch.manual_seed(0)
    model = Model(num_classes)
    if checkpoint is not None:
        model.load_state_dict(torch.load(checkpoint, map_location="cpu"))
    dgcl.nn.broadcast_parameters(model)  # all ranks take rank 0's
    model.eval()
    with torch.inference_mode():
        classes = model(x).argmax(1)  # of this rank's vertices, comm.owned_ids
    return dgcl.collect(classes, file=out)  # in the order of the graph's vertices


def main() -> None:
    """Predict on the ranks that there are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="a state_dict of the model")
    parser.add_argument("--out", metavar="FILE.npy", help="where rank 0 writes the classes")
    args = parser.parse_args()
    dgcl.init()
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    data = planted_communities(width=WIDTHS[0]) if first else None
    classes = predict(data, args.checkpoint, args.out)
    if classes is not None and data is not None:
        counts = classes.bincount(minlength=data.num_classes).tolist()
        print(f"{len(classes):,} vertices; predicted of each class: {counts}")
    elif first:
        print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
