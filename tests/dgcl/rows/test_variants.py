"""Each variant of a layer or model of PyG is on ranks what it is on one device, or is refused by its name."""

import contextlib
import copy

import pytest
import torch

import dgcl
from tests.dgcl.distributed.pyg_zoo import NUM_NODES, ZOO
from tests.dgcl.distributed.pyg_zoo import graph as zoo_graph
from tests.dgcl.rows.harness import differences, each_on_threads
from tests.dgcl.rows.variants import AGGREGATIONS, results, variants


def graph():
    """The table's graph, as two batched ones."""
    data = zoo_graph()
    data.batch = (torch.arange(NUM_NODES) > 25).long()
    return data


def judged(name: str) -> dict[str, list[str]]:
    """What is not as it should be, by the name of the variant."""
    known = []
    for variant in variants(name):
        with contextlib.suppress(Exception):
            known.append((variant, results(copy.deepcopy(variant.module), graph(), variant.inputs)))

    def run(case, data):
        return results(dgcl.distribute(copy.deepcopy(case[0].module)), data, case[0].inputs)

    found = {}
    for (variant, expected), got in zip(known, each_on_threads(run, known, graph()), strict=True):
        errors = [each for each in got if isinstance(each, Exception)]
        names = {type(each).__name__ for each in variant.module.modules()}
        raw = [repr(each) for each in errors if not isinstance(each, ValueError) or not any(each_name in str(each) for each_name in names)]
        if wrong := raw if errors else differences(got, expected):
            found[variant.name] = wrong
    return found


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", sorted({**ZOO, **AGGREGATIONS}))
def test_variants(name):
    assert judged(name) == {}
