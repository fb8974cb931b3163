"""A script on one device and on ranks: one device's view must give the same values, shapes and text on every rank.

A script is a function of data and a model, which returns all that it would print, by name: tensors, numbers, text and
lists of these. Importable, since ranks that are processes need functions by name.
"""

import contextlib
import functools
import threading

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric
import torch_geometric.nn as pyg
from torch import Tensor, nn

import dgcl
import dgcl.nn
from dgcl.rows.tensor import Replicated, Rows

TOLERANCE = 1e-10
BUILDING = threading.Lock()  # ranks that are threads share torch's generator
NAMES = {"torch": torch, "F": F, "nn": nn, "np": np, "pyg": pyg, "dgcl": dgcl, "utils": torch_geometric.utils}
compiled = functools.cache(lambda line: compile(line, line, "eval"))


def value_of(line, **names):
    """What a line of a script gives."""
    return eval(compiled(line), NAMES | names)


@contextlib.contextmanager
def doubles():
    """Let float64 be the default."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def seeded(make, *args):
    """The model that `make` builds: the same one wherever it is built."""
    with BUILDING, torch.random.fork_rng([]):
        torch.manual_seed(0)
        return make(*args)


def plain(value):
    """A value as one device has it: rows of all ranks, detached."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (Rows, Replicated)):
        value = dgcl.collect(value)
    return value.detach().clone() if isinstance(value, Tensor) else value


def on_one_device(script, make, data):
    """What the script returns on one device; it may change the data."""
    return plain(script(data, seeded(make, data)))


def on_rank(script, make, data, **options):
    """What the script returns on this rank: three of its lines are changed."""
    dgcl.init()
    data = dgcl.dispatch(data, **options)
    model = seeded(make, data)
    return plain(script(data, model and dgcl.distribute(model)))


def on_threads(run, tasks, graph, world_size=2, **options):
    """For each task what ``run(task, data)`` gives or raises on each rank; others begin after one that parts ranks."""

    def on_rank(start):
        data, got = dgcl.dispatch(graph, **options), []
        for task in tasks[start:]:
            try:
                got.append(plain(run(task, data)))
            except Exception as error:
                got.append(error)
                if isinstance(error, dgcl.CommError) or "closed" in str(error):
                    break
        return got

    results = []
    while len(results) < len(tasks):
        results += map(list, zip(*dgcl.launch(on_rank, world_size, len(results)), strict=False))
    return results


def differs(measured, expected, tolerance=TOLERANCE):
    """How a value differs from that of one device, or nothing."""
    if isinstance(expected, list) and isinstance(measured, list) and len(measured) == len(expected):
        found = [differs(one, other, tolerance) for one, other in zip(measured, expected, strict=True)]
        return ", ".join(f"[{place}] {what}" for place, what in enumerate(found) if what)
    if isinstance(expected, (Tensor, float)) and isinstance(measured, type(expected)):
        one, other = torch.as_tensor(measured), torch.as_tensor(expected)
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{one.dtype} {tuple(one.shape)} for {other.dtype} {tuple(other.shape)}"
        one, other = one.to_dense(), other.to_dense()
        size = (
            max(1.0, other.abs().nan_to_num().max().item())
            if other.is_floating_point() and other.numel()
            else 1.0
        )
        same = torch.isclose(one, other, rtol=0, atol=tolerance * size, equal_nan=True)
        return (
            ""
            if same.all()
            else f"{(~same).sum()} of {same.numel()} differ: {one[~same][0]} for {other[~same][0]}"
        )
    return (
        "" if type(measured) is type(expected) and measured == expected else f"{measured!r} for {expected!r}"
    )


def differences(ranks, expected, tolerance=TOLERANCE):
    """What is not as on one device, or not the same bits on all ranks; or what was raised."""
    if errors := {repr(each) for each in ranks if isinstance(each, Exception)}:
        return sorted(errors)
    found = []
    for name, value in expected.items():
        found += [
            f"{name}: {what}" for what in {differs(rank[name], value, tolerance) for rank in ranks} if what
        ]
        if any(differs(rank[name], ranks[0][name], 0) for rank in ranks):
            found.append(f"{name}: not the same on all ranks")
    return found


#: Refused by a sentence of dgcl's that does not say which class it is.
UNNAMED = {"DeepGCNLayer", "GraphUNet", "GroupRevRes", "TWIRLSConv"}


def is_refusal(error, name, module):
    """Whether an error names a class of the module's."""
    names = {"dgcl"} if name in UNNAMED else {type(each).__name__ for each in module.modules()}
    return isinstance(error, (ValueError, RuntimeError, AttributeError)) and any(
        each in str(error) for each in names
    )
