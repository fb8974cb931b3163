"""Models the CPU ranks of one host as a topology, from the measured rates at which its cores copy memory.

Ranks exchange rows through shared memory. A rank copies with one thread, so at the rate of one core. All ranks share
the memory, and together often copy not much faster than one.
Called by users (as `dgcl.topology.measure_host`), `resolve`, `dgcl/calibration/run` and `dgcl/cli/topo_detect`. Free to
change while a stage takes as long as the busiest core or the shared memory needs, whichever is longer
(`tests/topology/test_host.py`).
"""

from dgcl.topology.checks import check_index, check_num_devices
from dgcl.topology.copy_rates import CopyRates, copy_rates, num_copiers
from dgcl.topology.gpu_models import CPU_CORE
from dgcl.topology.model import Topology
from dgcl.topology.parts import Connection, Device, Link

# So a link runs over ``core<src>`` (bandwidth: one thread's rate), then over ``memory``, a half-duplex connection
# that every link shares (bandwidth: the rate of all together), then over ``store<dst>``, which only the memory
# limits. Links are given explicitly: a rank has one wire for reading and one for being written to, and the widest
# route would leave by the wrong one.


def measure_host(num_ranks: int, *, anew: bool = True) -> Topology:
    """The topology ``host<num_ranks>`` of this host, by the best copy rates that were measured on it.

    The rates are those of the cores that this process may run on. They become the bandwidths of the
    connections, to two significant digits (repeated measurements differ by more), so that a saved topology
    or a plan's ``meta`` records them. A single rank sends nothing, so nothing is measured for it.

    Args:
        num_ranks: Devices of the topology.
        anew: Measure now, in a quarter of a second; False: only if no measurement of this machine is stored.
    """
    check_num_devices(check_index(num_ranks, "num_ranks", 1), f"'host:{num_ranks}'")
    if num_ranks == 1:
        return Topology("host1", (Device("rank0", model=CPU_CORE),), ())
    return host_topology(num_ranks, copy_rates(num_copiers(num_ranks), anew=anew))


def host_topology(num_ranks: int, rates: CopyRates) -> Topology:
    """The topology of ``num_ranks`` CPU ranks that copy at these rates."""
    ranks = range(num_ranks)
    return Topology(
        name=f"host{num_ranks}",
        devices=tuple(Device(f"rank{r}", model=CPU_CORE) for r in ranks),
        connections=(
            Connection("memory", "memory", "loads", "stores", rates.all, duplex="half"),
            *(Connection(f"core{r}", "core", f"rank{r}", "loads", rates.one) for r in ranks),
            *(Connection(f"store{r}", "memory", "stores", f"rank{r}", rates.all) for r in ranks),
        ),
        links=tuple(
            Link(f"rank{src}", f"rank{dst}", (f"core{src}", "memory", f"store{dst}"))
            for src in ranks
            for dst in ranks
            if src != dst
        ),
    )
