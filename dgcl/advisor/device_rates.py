"""States or measures how fast a device sums rows, multiplies matrices and copies from the host.

Presets follow the models of the topology's devices; of several models the slowest counts, as ranks wait for each other.
``rates="here"`` times sums, a product and a copy on this host's CPU, each for a fifth of a second or more. ``sharing``
is how many ranks compute on one device or core.
Called by `choice`, `auto_strategy`, `weighing`, `epoch` and `advice`. Free to change while ranks that share a core take
as long as one rank (`tests/dgcl/advisor/test_choice.py`), an imported machine has the preset's rates
(`tests/topology/test_gpu_models.py`), and bad rates are refused (`tests/dgcl/cli/test_advise.py`).
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dgcl.topology.checks import shown
from dgcl.topology.copy_rates import available_cores
from dgcl.topology.gpu_models import CPU_CORE, GPU_MODELS

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
        unknown: What of the machine is not known, for the line that gives the model's error; "": nothing.
        sharing: Ranks that compute on one device, at least 1. A rank that has more to do than others goes on alone,
            so sums take what the fullest takes, or what all take together.
    """

    edge: float
    memory: float
    products: float
    host: float
    origin: str
    unknown: str = ""
    sharing: float = 1.0


#: Bytes a second between host and device by the generation of PCIe; newer ones as NVLink to the host.
_HOST = {3: 12e9, 4: 24e9}
_FASTER_HOST = 50e9
#: Memory, products, host: a core of a processor, and a card that is not known.
_CORE, _AVERAGE = (4e9, 10e9, 8e9), (300e9, 3e12, 12e9)


def preset_rates(topology: Topology) -> Rates:
    """By what its devices are: of several models the slowest, since ranks wait for each other."""
    models = list(dict.fromkeys(device.model for device in topology.devices))
    memory, products, host = (min(each) for each in zip(*map(_rates_of, models), strict=True))
    strange = [model for model in models if model != CPU_CORE and model not in GPU_MODELS]
    names = [model for model in models if model not in strange] + ["an average card"] * bool(strange)
    unknown = []
    if strange:
        unknown.append("what its cards are (dgcl topo import --gpu MODEL)")
    if set(models) != {CPU_CORE} and not any(wire.latency for wire in topology.connections):
        unknown.append("latencies (dgcl.topology.latencies)")
    return Rates(
        10e-9 * (CPU_CORE in models),
        memory,
        products,
        host,
        f"preset of {', '.join(names)}, not measured here",
        " and ".join(unknown) if topology.connections else "",
    )


def _rates_of(model: str) -> tuple[float, float, float]:
    """Half the memory's data sheet for rows read at random, half the float32 peak, and the way to the host."""
    gpu = GPU_MODELS.get(model)
    if gpu is None:
        return _CORE if model == CPU_CORE else _AVERAGE
    return gpu.memory * 1e9 / 2, gpu.products * 1e12 / 4, _HOST.get(gpu.pcie, _FASTER_HOST)


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
    return replace(preset, edge=0.0, memory=memory, products=products / 2, origin="as given", unknown="")


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
