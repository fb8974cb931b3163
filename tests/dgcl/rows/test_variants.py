"""Each variant of a layer or model of PyG is on ranks what it is on one device, or is refused by its name."""

import contextlib
import copy

import pytest
import torch

import dgcl
from tests.dgcl.distributed.pyg_zoo import NUM_NODES
from tests.dgcl.distributed.pyg_zoo import graph as zoo_graph
from tests.dgcl.rows.harness import differences, on_threads, plain
from tests.dgcl.rows.variants import MAKERS, results, variants


def graph():
    """The table's graph, as two batched ones."""
    data = zoo_graph()
    data.batch = (torch.arange(NUM_NODES) > 25).long()
    return data


def run(variant, data):
    _, module, inputs = variant
    return results(dgcl.distribute(copy.deepcopy(module)), data, inputs)


#: Refused by a sentence of dgcl's that does not say which class it is.
UNNAMED = {"DeepGCNLayer", "GraphUNet", "GroupAddRev"}


def is_refusal(error, name, module):
    """Whether an error names a class of the module's."""
    names = {"dgcl"} if name in UNNAMED else {type(each).__name__ for each in module.modules()}
    return isinstance(error, (ValueError, RuntimeError)) and any(each in str(error) for each in names)


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_variants(name):
    known = {}
    for variant in variants(name):
        with contextlib.suppress(Exception):
            known[variant] = plain(results(copy.deepcopy(variant[1]), graph(), variant[2]))
    tolerance = 1e-6 if "Equilibrium" in name else 1e-10  # its rows in another order give 1e-8 on one device
    found = {}
    for variant, got in zip(known, on_threads(run, list(known), graph()), strict=True):
        if not all(is_refusal(each, name, variant[1]) for each in got) and (
            wrong := differences(got, known[variant], tolerance)
        ):
            found[variant[0]] = wrong
    assert found == {}
