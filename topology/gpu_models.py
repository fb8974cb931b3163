"""Lists GPU models with figures of their data sheets, and finds the model that a product name means.

The figures: compute capability, PCIe generation, number of NVLinks, memory and float32 rates, PCI device numbers.
Called by `rates`, `host`, `topology/importers/files`, `topology/detect/gpu_machine`, `dgcl/advisor/device_rates` and
others. Free to change while names as vendors, drivers and people write them find their model, and an imported machine
has the figures of its preset (`tests/topology/test_gpu_models.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dgcl.topology.checks import nearest, shown

#: The model of a device that is a rank's core of a processor.
CPU_CORE = "CPU core"


@dataclass(frozen=True)
class GpuModel:
    """A GPU model.

    Attributes:
        name: As people write it.
        sm: Compute capability, 90 for 9.0; 0 for AMD's.
        pcie: Generation.
        nvlinks: Their number.
        memory: GB/s, peak.
        products: float32 TFLOP/s, peak, without tensor cores.
        devices: Its numbers on PCI, as far as known.
    """

    name: str
    sm: int
    pcie: int
    nvlinks: int
    memory: float
    products: float
    devices: str


# The vendors' data sheets. Of two versions the faster; of AMD's packages of two dies, one die.
_MODELS = """
1080 Ti        61 3  0   484  11.3  -
P100           60 3  4   732  10.6  -
V100           70 3  6   900  16    1db1,1db4,1db5,1db6,1db8
T4             75 3  0   320   8.1  1eb8
2080 Ti        75 3  2   616  13.4  -
A100           80 4 12  2000  20    20b0,20b2,20b5,20f1
A800           80 4  8  2000  20    -
A30            80 4  4   933  10.3  20b7
A2             86 4  0   200   4.5  -
A10            86 4  0   600  31.2  2236
A10G           86 4  0   600  31.5  2237
A16            86 4  0   200   4.5  -
A40            86 4  4   696  37.4  2235
3080           86 4  0   760  29.8  -
3090           86 4  4   936  35.6  -
A4000          86 4  0   448  19.2  -
A5000          86 4  4   768  27.8  -
A6000          86 4  4   768  38.7  -
4080           89 4  0   717  48.7  -
4090           89 4  0  1008  82.6  -
L4             89 4  0   300  30.3  27b8
L20            89 4  0   864  59.8  -
L40            89 4  0   864  90.5  26b5
L40S           89 4  0   864  91.6  26b9
RTX 6000 Ada   89 4  0   960  91.1  -
H100           90 5 18  3340  60    2330,2331,2321
H200           90 5 18  4800  60    2335,233b
H20            90 5 18  4000  44    -
H800           90 5  8  3340  60    -
GH200          90 5 18  4800  60    2342
B200          100 5 18  8000  80    2901
GB200         100 5 18  8000  80    2941
B300          103 6 18  8000  80    -
GB300         103 6 18  8000  80    -
5080          120 5  0   960  56.3  -
5090          120 5  0  1792 104.8  -
RTX PRO 6000  120 5  0  1792 125    -
GB10          121 5  0   273  31    -
MI210           0 4  0  1638  22.6  740f
MI250           0 4  0  1638  22.6  -
MI250X          0 4  0  1638  23.9  7408,740c
MI300A          0 5  0  5300 122.6  -
MI300X          0 5  0  5300 163.4  74a1
MI325X          0 5  0  6000 163.4  -
MI350X          0 5  0  8000 144.2  -
MI355X          0 5  0  8000 157.3  -
"""


def _read(line: str) -> GpuModel:
    name, sm, pcie, nvlinks, memory, products, devices = line.rsplit(maxsplit=6)
    return GpuModel(name.strip(), int(sm), int(pcie), int(nvlinks), float(memory), float(products), devices)


GPU_MODELS: Mapping[str, GpuModel] = {model.name: model for model in map(_read, _MODELS.strip().splitlines())}
_MOST_WORDS = 12  # of a product's name
_MAKERS = re.compile(r"^(nvidia|amd|geforce|tesla|quadro|instinct|radeon|rtx|gtx)+")


def find_model(text: str) -> str:
    """The model that a product's name means: H100 of ``NVIDIA H100 80GB HBM3``; "" if it is none that is known."""
    words = re.split(r"[^a-z0-9]+", text.lower())[:_MOST_WORDS]
    runs = {"".join(words[a:b]) for a in range(len(words)) for b in range(a + 1, len(words) + 1)}
    runs |= {_MAKERS.sub("", run) for run in runs}
    models = [name for name in GPU_MODELS if {_plain(name), _MAKERS.sub("", _plain(name))} & runs]
    return max(models, key=len, default="")


def model_of_pci(device: str, sm: int | None) -> str:
    """The model of a GPU by its number on PCI (``0x2330``), or as the only one of this compute capability; or ""."""
    number = device.lower().removeprefix("0x")
    known = [name for name, model in GPU_MODELS.items() if number in model.devices.split(",")]
    models = known or [name for name, model in GPU_MODELS.items() if model.sm == sm]
    return models[0] if len(models) == 1 else ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def gpu_model(text: str) -> GpuModel:
    """The model that a user names.

    Raises:
        ValueError: It is none that is known; names the closest.
    """
    name = find_model(text)
    if not name:
        hint = nearest(_MAKERS.sub("", _plain(text)), GPU_MODELS)
        raise ValueError(f"gpu must be one of {', '.join(GPU_MODELS)} (got {shown(text)}){hint}")
    return GPU_MODELS[name]
