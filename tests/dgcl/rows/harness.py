"""A script on one device and on ranks: one device's view must give the same values, shapes and text on every rank.

A script is a function of data and a model, which returns all that it would print, by name: tensors, numbers, text and
lists of these. Importable, since ranks that are processes need functions by name.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import dgcl
from dgcl.rows import Replicated, Rows

TOLERANCE = 1e-10
BUILDING = threading.Lock()  # ranks that are threads share torch's generator

Make = Callable[[Any], Any]
Script = Callable[[Any, Any], dict[str, Any]]


@contextlib.contextmanager
def doubles() -> Iterator[None]:
    """Let float64 be the default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def seeded(make: Make, data: Any) -> Any:
    """The model that `make` builds for `data`: the same one wherever it is built."""
    with BUILDING, torch.random.fork_rng([]):
        torch.manual_seed(0)
        return make(data)


def plain(value: Any) -> Any:
    """A value as one device has it: rows of all ranks, detached."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Tensor):
        known = isinstance(value, (Rows, Replicated))
        return (dgcl.collect(value) if known else value).detach().clone()
    return value


def on_one_device(script: Script, make: Make, data: Any) -> dict[str, Any]:
    """What the script returns on one device; it may change the data."""
    return plain(script(data, seeded(make, data)))


def on_rank(script: Script, make: Make, data: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What the script returns on this rank: three of its lines are changed."""
    dgcl.init()
    data = dgcl.dispatch(data, typed=True, **options)
    model = seeded(make, data)
    return plain(script(data, model if model is None else dgcl.distribute(model)))


def on_threads(script: Script, make: Make, data: Any, world_size: int = 3, **options: Any) -> list[dict[str, Any]]:
    """What each of the ranks returns, which are threads."""
    return dgcl.launch(on_rank, world_size, script, make, data, options, timeout=60)


def each_on_threads(
    run: Callable[[Any, Any], Any], tasks: list[Any], graph: Any, world_size: int = 2, **options: Any
) -> list[list[Any]]:
    """For each task what ``run(task, data)`` returns or raises on each rank.

    A task may leave ranks apart: others begin after it.
    """

    def on_rank(start: int) -> list[Any]:
        data, got = dgcl.dispatch(graph, typed=True, **options), []
        for task in tasks[start:]:
            try:
                got.append(run(task, data))
            except Exception as error:
                got.append(error)
                if isinstance(error, dgcl.CommError) or "closed" in str(error):
                    break
        return got

    results: list[list[Any]] = []
    while len(results) < len(tasks):
        results += map(list, zip(*dgcl.launch(on_rank, world_size, len(results)), strict=False))
    return results


def differs(measured: Any, expected: Any) -> str:
    """How a value differs from that of one device, or nothing."""
    if isinstance(expected, list):
        if not isinstance(measured, list) or len(measured) != len(expected):
            return f"{measured} for {expected}"
        found = enumerate(map(differs, measured, expected))
        return ", ".join(f"[{place}] {what}" for place, what in found if what)
    if isinstance(expected, (Tensor, float)) and isinstance(measured, type(expected)):
        one, other = torch.as_tensor(measured), torch.as_tensor(expected)
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{one.dtype} {tuple(one.shape)} for {other.dtype} {tuple(other.shape)}"
        if not one.is_floating_point():
            return "" if torch.equal(one, other) else f"{(one != other).sum()} of {one.numel()} differ"
        size = other.abs().nan_to_num().max().item() if other.numel() else 0
        if torch.allclose(one, other, rtol=0, atol=TOLERANCE * max(size, 1), equal_nan=True):
            return ""
        return f"{one} for {other}" if one.dim() == 0 else f"off by {(one - other).abs().max().item():.1e} of {size:.1e}"
    return "" if type(measured) is type(expected) and measured == expected else f"{measured!r} for {expected!r}"


def same_bits(one: Any, other: Any) -> bool:
    """Whether two ranks have the very same."""
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, Tensor):
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    return one == other or one != one


def differences(ranks: list[dict[str, Any]], expected: dict[str, Any]) -> list[str]:
    """What is not as on one device, or not the same on all ranks."""
    found = []
    for name, value in expected.items():
        found += [f"{name}: {what}" for what in {differs(rank[name], value) for rank in ranks} if what]
        if not all(same_bits(rank[name], ranks[0][name]) for rank in ranks):
            found.append(f"{name}: not the same on all ranks")
    return found
