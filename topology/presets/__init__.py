"""Machines by name, each with the source of its wiring and of its numbers.

Bandwidths are in GB/s per direction and, where a source gives them, what copies between devices reach, not
the peak of the data sheet. Latencies are not here: :mod:`dgcl.topology.latencies` adds them by the kind of connection
when a machine is asked for by its name.
"""

from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from types import MappingProxyType

from dgcl.topology.model import Topology, with_model
from dgcl.topology.presets import cloud, nvidia, other, pcie
from dgcl.topology.presets.other import uniform

# What the GPUs of machines are; in others any card may be.
_MODELS = """
V100: dgx1 dgx1_edr dgx2 summit
A100: dgx_a100 aws_p4d azure_ndv4 a100_pair
H100: hgx_h100 aws_p5 azure_ndv5 h100_nvl_pair
H200: hgx_h200 aws_p5en
B200: hgx_b200
B300: hgx_b300
GH200: gh200 gh200_quad
GB200: gb200_nvl4 gb200_tray gb200_nvl72
L4: aws_g6
MI250X: mi250x
MI300X: mi300x azure_nd_mi300x
1080 Ti: pcie4_1080ti pcie8_1080ti
A40: pcie4_a40 pcie8_a40
L40S: pcie4_l40s pcie8_l40s
4090: pcie4_4090 pcie8_4090
5090: pcie4_5090 pcie8_5090
3090: rtx3090_pair
"""
_MODEL_OF = {
    name: model
    for model, _, names in (line.partition(":") for line in _MODELS.splitlines())
    for name in names.split()
}


def _machine(node: Callable[[int], Topology], num_machines: int = 1) -> Topology:
    return with_model(node(num_machines), _MODEL_OF.get(node.__name__, ""))


#: Every machine by its name; called with a number of machines, they are joined by their network: ``dgx1x2``.
NODES: Mapping[str, Callable[[int], Topology]] = MappingProxyType(
    {
        node.__name__: update_wrapper(partial(_machine, node), node)
        for node in (
            nvidia.dgx1,
            nvidia.dgx1_edr,
            nvidia.dgx2,
            nvidia.dgx_a100,
            nvidia.hgx_h100,
            nvidia.hgx_h200,
            nvidia.hgx_b200,
            nvidia.hgx_b300,
            nvidia.gh200,
            nvidia.gh200_quad,
            nvidia.gb200_nvl4,
            nvidia.gb200_tray,
            nvidia.gb200_nvl72,
            cloud.aws_p4d,
            cloud.aws_p5,
            cloud.aws_p5en,
            cloud.aws_g6,
            cloud.azure_ndv4,
            cloud.azure_ndv5,
            cloud.azure_nd_mi300x,
            other.summit,
            other.mi250x,
            other.mi300x,
            pcie.pcie8,
            pcie.pcie4_1080ti,
            pcie.pcie8_1080ti,
            pcie.pcie4_a40,
            pcie.pcie8_a40,
            pcie.pcie4_l40s,
            pcie.pcie8_l40s,
            pcie.pcie4_4090,
            pcie.pcie8_4090,
            pcie.pcie4_5090,
            pcie.pcie8_5090,
            pcie.rtx3090_pair,
            pcie.a100_pair,
            pcie.h100_nvl_pair,
        )
    }
)

#: Other names of the same machines.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "hgx_a100": "dgx_a100",
        "dgx_h100": "hgx_h100",
        "dgx_h200": "hgx_h200",
        "dgx_b200": "hgx_b200",
        "dgx_b300": "hgx_b300",
        "h100": "hgx_h100",
        "h200": "hgx_h200",
        "b200": "hgx_b200",
        "b300": "hgx_b300",
        "frontier": "mi250x",
    }
)

#: How sure the rates inside a machine are, by what its source says (docs/topology.md, "Presets").
SURE: Mapping[str, str] = MappingProxyType(
    {
        name: how
        for how, names in (
            ("measured", "dgx1 dgx1_edr dgx2 dgx_a100 hgx_h100 gb200_tray mi300x"),
            (
                "measured",
                "aws_p4d aws_p5 azure_ndv4 azure_ndv5 azure_nd_mi300x pcie8 pcie4_1080ti pcie8_1080ti",
            ),
            ("measured on its like", "hgx_h200 hgx_b200 hgx_b300 gb200_nvl72 aws_p5en a100_pair"),
            ("measured on its like", "pcie4_l40s pcie8_l40s"),
            ("by the link", "gh200_quad gb200_nvl4 h100_nvl_pair"),
            ("measured, memory peak", "aws_g6 pcie4_4090 pcie8_4090 pcie4_5090 pcie8_5090"),
            ("NCCL's figure", "pcie4_a40 pcie8_a40 rtx3090_pair"),
            ("peak", "summit mi250x gh200"),
        )
        for name in names.split()
    }
)

__all__ = ["ALIASES", "NODES", "SURE", "uniform"]
