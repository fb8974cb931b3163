"""Training in chunks gives the losses, logits, gradients and parameters of training on one device.

(DGL, PyG, plain torch) x (GCN, SAGE, GIN, GAT) x ranks x chunks x awkward graphs, computed again or with
kept aggregates, in memory or in files; five Adam steps in float64 at 1e-10. Every day a sample, the rest is slow.
"""

import pytest
import torch

import dgcl
from tests.dgcl.offload.models import KEPT, on_rank
from tests.support.awkward import CASES
from tests.support.equivalence import ARCHITECTURES, assert_equal_runs, reference
from tests.support.samples import sampled

NAMES = [case.name for case in CASES]
#: (ranks, chunks of each, chunks by): from one chunk to more than a rank has vertices.
LAYOUTS = [
    (1, 1, "metis"),
    (1, 5, "metis"),
    (2, 3, "range"),
    (2, 16, "range"),
    (3, 4, "metis"),
    (4, 9, "metis"),
]


@pytest.fixture(autouse=True)
def _framework_is_installed(request: pytest.FixtureRequest):
    parameters = getattr(request.node, "callspec", None)
    framework = (parameters.params if parameters else {}).get("architecture", "torch-").split("-")[0]
    pytest.importorskip({"dgl": "dgl", "pyg": "torch_geometric", "torch": "torch"}[framework])


@pytest.mark.parametrize(
    "architecture, case, layout",
    sampled(
        ARCHITECTURES,
        NAMES,
        LAYOUTS,
        keep=lambda row, column, layout: (row * 5 + column + 9 * layout) % 108 == 0,
    ),
)
def test_layers_computed_again(architecture, case, layout):
    world_size, chunks, chunk_by = layout
    runs = dgcl.launch(
        lambda: on_rank(architecture, case, world_size, chunks=chunks, chunk_by=chunk_by),
        world_size,
    )
    for run in runs:
        assert_equal_runs(run, reference(architecture, case))


@pytest.mark.parametrize(
    "architecture, case, layout",
    sampled(KEPT, NAMES, LAYOUTS, keep=lambda row, column, layout: (row * 5 + column + 9 * layout) % 36 == 0),
)
def test_kept_aggregates(architecture, case, layout):
    world_size, chunks, chunk_by = layout
    runs = dgcl.launch(
        lambda: on_rank(architecture, case, world_size, True, chunks=chunks, chunk_by=chunk_by),
        world_size,
    )
    for run in runs:
        assert_equal_runs(run, reference(architecture, case))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_rows_in_files(tmp_path, cached: bool, kept: bool):
    options = {
        "chunks": 4,
        "store": tmp_path,
        "store_cached": cached,
        "keep_graphs": cached,
    }
    for run in dgcl.launch(lambda: on_rank("torch-sage", "multi-edges", 2, kept, **options), 2):
        assert_equal_runs(run, reference("torch-sage", "multi-edges"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("architecture, kept", [("torch-gat", False), ("torch-gin", True)])
def test_what_is_saved_may_pass_through_hooks(architecture: str, kept: bool):
    """With more slots than batches need."""

    def run():
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(force=True), torch.tensor):
            return on_rank(architecture, "hub", 2, kept, chunks=6, slots=20)

    for each in dgcl.launch(run, 2):
        assert_equal_runs(each, reference(architecture, "hub"))


@pytest.mark.slow
def test_processes(rank_pool):
    for run in rank_pool(2).run(on_processes, "torch-gat", "directed"):
        assert_equal_runs(run, reference("torch-gat", "directed"))


def on_processes(architecture: str, case: str):
    return on_rank(architecture, case, 2, chunks=5)


def test_the_same_run_twice_is_bitwise_the_same():
    first, second = (
        dgcl.launch(lambda: on_rank("torch-gat", "multi-edges", 3, chunks=4), 3) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert all(a.logits.equal(b.logits) for a, b in zip(one.steps, other.steps, strict=True))
        assert one.x_gradient.equal(other.x_gradient)
        assert all(mine.equal(theirs) for mine, theirs in zip(one.parameters, other.parameters, strict=True))
