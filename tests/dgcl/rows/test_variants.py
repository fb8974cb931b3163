"""Each variant of a layer or model of PyG is on ranks what it is on one device, or is refused by its name."""

import contextlib
import copy

import pytest

import dgcl
from tests.dgcl.rows.pyg_zoo import graph
from tests.dgcl.rows.variants import MAKERS, results, variants
from tests.support.rows_harness import differences, is_refusal, on_threads, plain


def run(variant, data):
    _, module, inputs = variant
    return results(dgcl.distribute(copy.deepcopy(module)), data, inputs)


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
