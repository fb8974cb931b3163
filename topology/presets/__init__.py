"""Machines by name, each with the source of its wiring and of its numbers.

Bandwidths are in GB/s per direction and, where a source gives them, what copies between devices reach, not
the peak of the data sheet. Latencies are not here: :mod:`dgcl.topology.latencies` adds them by the kind of connection
when a machine is asked for by its name.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper

from dgcl.topology.model import Topology
from dgcl.topology.presets import cloud, nvidia, other, pcie
from dgcl.topology.presets.other import uniform as uniform
from dgcl.topology.presets.wires import Box

# A machine's name, how sure the rates inside it are, its GPUs, and other names of it, in columns.
# Any card may be in machines whose GPUs are "-".
_MACHINES = """
dgx1             measured              V100
dgx1_edr         measured              V100
dgx2             measured              V100
dgx_a100         measured              A100     hgx_a100
hgx_h100         measured              H100     dgx_h100 h100
hgx_h200         measured on its like  H200     dgx_h200 h200
hgx_b200         measured on its like  B200     dgx_b200 b200
hgx_b300         measured on its like  B300     dgx_b300 b300
gh200            peak                  GH200
gh200_quad       by the link           GH200
gb200_nvl4       by the link           GB200
gb200_tray       measured              GB200
gb200_nvl72      measured on its like  GB200
aws_p4d          measured              A100
aws_p5           measured              H100
aws_p5en         measured on its like  H200
aws_g6           measured, memory peak  L4
azure_ndv4       measured              A100
azure_ndv5       measured              H100
azure_nd_mi300x  measured              MI300X
summit           peak                  V100
mi250x           peak                  MI250X   frontier
mi300x           measured              MI300X
pcie8            measured              -
pcie4_1080ti     measured              1080 Ti
pcie8_1080ti     measured              1080 Ti
pcie4_a40        NCCL's figure         A40
pcie8_a40        NCCL's figure         A40
pcie4_l40s       measured on its like  L40S
pcie8_l40s       measured on its like  L40S
pcie4_4090       measured, memory peak  4090
pcie8_4090       measured, memory peak  4090
pcie4_5090       measured, memory peak  5090
pcie8_5090       measured, memory peak  5090
rtx3090_pair     NCCL's figure         3090
a100_pair        measured on its like  A100
h100_nvl_pair    by the link           H100
"""
_ROWS = [[*re.split("  +", line), ""] for line in _MACHINES.strip().splitlines()]
_BOXES: Mapping[str, Callable[[], Box]] = vars(nvidia) | vars(cloud) | vars(other) | vars(pcie)


def _machine(name: str, model: str, num_machines: int = 1) -> Topology:
    return _BOXES[name]().joined(name, model, num_machines)


#: Every machine by its name; called with a number of machines, they are joined by their network: ``dgx1x2``.
NODES: Mapping[str, Callable[[int], Topology]] = {
    name: update_wrapper(partial(_machine, name, model.replace("-", "")), _BOXES[name])
    for name, _, model, *_ in _ROWS
}
#: How sure the rates inside a machine are, by what its source says (docs/topology.md, "Presets").
SURE: Mapping[str, str] = {name: sure for name, sure, *_ in _ROWS}
#: Other names of the same machines.
ALIASES: Mapping[str, str] = {other: name for name, _, _, names, *_ in _ROWS for other in names.split()}
