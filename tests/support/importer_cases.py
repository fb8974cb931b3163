"""Hand-made inputs of every importer, and where the shared collection of real ones lies."""

from pathlib import Path

import pytest

from dgcl.topology import Topology

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "topologies"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not here")

# Two sockets; on the first two GPUs and a NIC behind a switch, bridged by NVLink; on the other a GPU alone.
MATRIX = """\
\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV2\tSYS\tPIX\t0-15,32-47\t0\t\tN/A
GPU1\tNV2\t X \tSYS\tPIX\t0-15,32-47\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t16-31,48-63\t1\t\tN/A
mlx5_0\tPIX\tPIX\tSYS\t X \t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""

# The same machine as NCCL sees it.
XML = """\
<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:03:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:06:00.0" class="0x030200" link_speed="8 GT/s" link_width="16">
        <gpu dev="0" sm="70" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:07:00.0" class="0x030200" link_speed="8 GT/s" link_width="16">
        <gpu dev="1" sm="70" rank="1" gdr="1">
          <nvlink target="0000:06:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:05:00.0" class="0x020700" link_speed="8 GT/s" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x0" maxconn="262144" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:81:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="8">
      <gpu dev="2" sm="70" rank="2" gdr="1"/>
    </pci>
  </cpu>
</system>
"""

# And as p2pBandwidthLatencyTest measures it.
TABLES = """\
P2P Connectivity Matrix
     D\\D     0     1     2
     0       1     1     0
     1       1     1     0
     2       0     0     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 700.00   9.10   9.00
     1   9.20 701.00   9.10
     2   5.90   6.00 702.00
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2
     0 700.00  48.00   6.00
     1  48.20 701.00   6.10
     2   5.90   6.00 702.00
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1      2
     0   1.30   1.80  12.00
     1   1.80   1.30  12.00
     2  12.00  12.00   1.30

   CPU     0      1      2
     0   1.30   1.80   6.00
     1   1.80   1.30   6.00
     2   6.00   6.00   1.30

NOTE: The CUDA Samples are not meant for performance measurements. Results may vary when GPU Boost is enabled.
"""


def wires(topology: Topology) -> dict[tuple[str, str, str], float]:
    """The bandwidth of each connection."""
    return {(c.a, c.b, c.kind): c.bandwidth for c in topology.connections}


def routes(topology: Topology) -> dict[tuple[str, str], tuple[str, ...]]:
    """The connections of each link."""
    return {(link.src, link.dst): link.route for link in topology.links}
