"""How fast devices sum rows, multiply matrices and copy from the host; stated, or measured here in seconds."""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dgcl.topology.checks import shown
from dgcl.topology.copy_rates import available_cores

if TYPE_CHECKING:
    from dgcl.topology import Topology


@dataclass(frozen=True)
class Rates:
    """Of one device.

    Attributes:
        edge: Seconds of an edge that is summed, whatever its row is.
        memory: Bytes of rows a second that sums read.
        products: Multiplications (with their additions) a second.
        host: Bytes a second between host and device.
        origin: Where they come from, for people.
        sharing: Ranks that compute on one device, at least 1. A rank that has more to do than others goes on alone,
            so sums take what the fullest takes, or what all take together.
    """

    edge: float
    memory: float
    products: float
    host: float
    origin: str
    sharing: float = 1.0


#: Half the memory's data sheet for rows read at random, half the float32 peak; PCIe, or NVLink to the host.
_CARDS = {
    "b200 b300": (4000e9, 20e12, 50e9),
    "h200 gh200": (2400e9, 15e12, 50e9),
    "h100 p5 ndv5": (1670e9, 15e12, 50e9),
    "a100 p4d ndv4": (1000e9, 5e12, 24e9),
    "dgx1 dgx2 v100": (450e9, 4e12, 12e9),
    "host uniform": (4e9, 10e9, 8e9),  # a core
    "": (300e9, 3e12, 12e9),
}


def preset_rates(topology: Topology) -> Rates:
    """By the name of the machine: those of its cards; a core's where ranks are on a CPU."""
    name = topology.name.lower()
    key, rates = next(
        (key, rates) for keys, rates in _CARDS.items() for key in keys.split(" ") if key in name
    )
    edge = 10e-9 * (key in ("host", "uniform"))
    return Rates(
        edge, *rates, f"preset of {key or 'an average card, as none of its name is known'}, not measured here"
    )


def read_rates(rates: str | Rates | None, topology: Topology) -> Rates:
    """Rates as users write them; see :func:`dgcl.advise`.

    Raises:
        ValueError: They are not understood.
    """
    if isinstance(rates, Rates):
        return rates
    preset = preset_rates(topology)
    if rates is None:
        return preset
    if rates == "here":
        sharing = topology.num_devices / available_cores()
        return replace(measure_rates(), sharing=max(1.0, sharing))
    try:
        memory, products = (float(each) * 1e9 for each in rates.split(","))
    except (AttributeError, ValueError):
        memory = products = math.nan
    if not (0 < memory < math.inf and 0 < products < math.inf):
        raise ValueError(
            f"rates must be 'here', or GB/s of sums and GFLOP/s of products as 900,14000 (got {shown(rates)})"
        )
    return replace(preset, edge=0.0, memory=memory, products=products / 2, origin="as given")


def measure_rates() -> Rates:
    """Time sums of wide and narrow rows, a product and a copy, each for a fifth of a second."""
    import torch

    from dgcl.frameworks.csr_ops import build_adjacency, weighted_sum

    rows, degree, wide, narrow = 1 << 14, 16, 256, 16
    random = torch.Generator().manual_seed(0)
    x, weight = torch.ones(rows, wide), torch.ones(wide, wide)

    def mean(call: Callable[[], object]) -> float:
        call()  # which warms up
        rounds, seconds = timeit.Timer(call).autorange()
        return seconds / rounds

    def sums(width: int) -> float:
        table = x.view(-1, width)  # as many bytes, whatever the width: caches hold as much of them
        sources = torch.randint(0, len(table), (rows * degree,), dtype=torch.int32, generator=random)
        indptr = torch.arange(0, rows * degree + 1, degree, dtype=torch.int32)
        edges = build_adjacency(indptr, sources, len(table))
        return mean(lambda: weighted_sum(table, None, edges)) / len(sources)

    with torch.no_grad():
        of_wide, of_narrow = sums(wide), sums(narrow)
        product = mean(lambda: x @ weight) / (rows * wide * wide)
        copy = mean(lambda: x.cpu().clone()) / x.nbytes
    per_byte = max((of_wide - of_narrow) / (4 * (wide - narrow)), 1e-15)
    edge = max(0.0, of_narrow - 4 * narrow * per_byte)
    return Rates(edge, 1 / per_byte, 1 / product, 1 / copy, "measured here on cpu")
