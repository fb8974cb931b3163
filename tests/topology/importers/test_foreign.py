"""What is not for the importers: named for what it is, with a way out."""

import gzip

import pytest

from dgcl.topology.importers import import_topology
from dgcl.topology.importers.topo_matrix import parse_topo_matrix
from tests.support.importer_cases import MATRIX, XML
from tests.support.samples import named

ROCM = """

============================ ROCm System Management Interface ============================
=============================== Weight between two GPUs ================================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0
"""
AMD = "ACCESS TABLE:\n             0000:0c:00.0  0000:22:00.0\n0000:0c:00.0 ENABLED       ENABLED\n"
SMI = "Fri Nov 20 23:50:00 2026\n+-------+\n| NVIDIA-SMI 525.60.13    Driver Version: 525.60.13 |\n"
LIST = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)\n"
P2P = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
LSTOPO = '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0"/>\n'


PREFIXES = ("node1: ", "[1,0]<stdout>:", "> ")
OTHER = "is what nvidia-smi writes with other options: import the text of `nvidia-smi topo -m`"
CASES = {
    "rocm-smi": (ROCM, "rocm-smi or amd-smi, of AMD GPUs: import RCCL's topology file"),
    "amd-smi": (AMD, "of AMD GPUs: import RCCL's topology file"),
    "rocm-smi, its table": (ROCM.split("=\n")[-1], "of AMD GPUs"),
    "rocm-smi, its types": ("       GPU0  GPU1\nGPU0   0     XGMI\n", "of AMD GPUs"),
    "amd-smi, its table": (AMD.split(":\n")[1], "of AMD GPUs"),
    "topo -mp": (
        "root@a:~# nvidia-smi topo -mp\n" + MATRIX,
        OTHER,
    ),
    "nvidia-smi": (SMI, OTHER),
    "nvidia-smi -L": (LIST, OTHER),
    "nvlink status": (LIST + "\t Link 0: 25 GB/s\n", OTHER),
    "topo -p2p": (P2P, OTHER),
    "xml of nvidia-smi": ("<?xml version='1.0'?>\n<nvidia_smi_log>\n", OTHER),
    "lstopo": (LSTOPO, "hwloc"),
    "lstopo, its encoding": (LSTOPO.replace("?>", ' encoding="UTF-8"?>'), "lstopo"),
    "lstopo, its text": ("Machine (63GB total)\n  Package L#0\n    NUMANode L#0 (P#0 31GB)\n", "lstopo"),
    "mig": ("\tGPU0\tMIG 1g.5gb\nGPU0\t X \tPIX\n", "lists MIG devices"),
    "nvbandwidth": ("nvbandwidth Version: v0.4\nBuilt from Git version:\n", "is the output of nvbandwidth"),
    "no driver": ("NVIDIA-SMI has failed because it couldn't communicate\n", "error message of nvidia-smi"),
    "no tool": ("bash: nvidia-smi: command not found\n", "error message of nvidia-smi"),
    "web page": (f"<html><body><pre>{MATRIX}</pre></body></html>", "web page"),
    **{prefix: (MATRIX.replace("GPU0", prefix + "GPU0"), "each line with a word") for prefix in PREFIXES},
    "gzip": (gzip.compress(MATRIX.encode()), "is compressed: unpack it"),
    "two matrices": (
        MATRIX + MATRIX,
        "line 13: a second matrix begins: each machine needs a file of its own",
    ),
    "two at once": (MATRIX.split("\n\n", maxsplit=1)[0] + "\n" + MATRIX, "line 6: a second matrix begins"),
}


@named("content, reason", CASES)
def test_refused_for_what_it_is(content: str | bytes, reason: str, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=reason):
        import_topology(path)


@named(
    "content",
    {
        "CRLF": MATRIX.replace("\n", "\r\n").encode(),
        "CR": MATRIX.replace("\n", "\r").encode(),
        "UTF-16, as PowerShell writes it": MATRIX.encode("utf-16"),
        "colours": MATRIX.replace("NV2", "\x1b[32mNV2\x1b[0m\x1b[K").encode(),
        "no-break blanks": MATRIX.replace("\t", "\u00a0 ").encode(),
        "fenced": f"```\n{MATRIX}\n```\n".encode(),
        "prompts": f"[me@node ~]$ nvidia-smi topo -m\n{MATRIX}\n[me@node ~]$ \n".encode(),
        "escape characters lost": MATRIX.replace("\tGPU0", "\t[4mGPU0", 1).encode(),
        "XML in UTF-16 without a declaration": XML.encode("utf-16"),
        "XML, CRLF": XML.replace("\n", "\r\n").encode(),
    },
)
def test_spellings_of_the_same(content: bytes, tmp_path):
    (tmp_path / "f").write_bytes(content)
    assert import_topology(tmp_path / "f").topology.num_devices == 3


def test_more_gpus_than_any_machine_has():
    names = [f"GPU{n}" for n in range(200)]
    rows = "\n".join(f"{a}\t" + "\t".join("X" if a == b else "PIX" for b in names) for a in names)
    with pytest.raises(ValueError, match="line 1: 200 columns, more than any machine has"):
        parse_topo_matrix("\t" + "\t".join(names) + "\n" + rows)
