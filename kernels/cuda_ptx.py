"""The kernels as PTX, the text that a driver translates for the GPU at hand.

PTX of all kernels comes with the package, in one small archive (:data:`ARCHIVE`), so that using a GPU needs
the driver and nothing else: no CUDA toolkit, and no CUDA half of numba that fits the rest. Where the
kernels' sources were changed since it was written, they are compiled instead, which numba does without a
GPU or a driver but with NVVM, a part of the toolkit; ``make kernels`` writes the archive anew.

Called by `cuda_launch`, `dgcl/transport/cuda/gpu` and `dgcl/transport/cuda/trial`. Free to change while
results are bit for bit those of plain Python (`tests/kernels/test_cuda_compile.py`).
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from dgcl.kernels.cuda_catalogue import CAPABILITIES, Kernel, catalogue

#: Where the PTX of all kernels lies.
ARCHIVE = Path(__file__).with_name("cuda_ptx.tar.xz")

# What the text depends on.
_SOURCES = (
    "cuda_catalogue.py",
    "cuda_flags.py",
    "cuda_memory.py",
    "cuda_numbers.py",
    "cuda_ptx.py",
    "cuda_rows.py",
    "cuda_tables.py",
    "memory.py",
)
_FINGERPRINT = "fingerprint"

# The text says which version of the PTX language its compiler speaks, and an older driver refuses a newer
# one. What our kernels use is in 7.8, the first that knows compute capability 9.0.
_VERSION = "7.8"


def is_current(path: Path) -> bool:
    """Whether an archive holds the PTX of these sources."""
    return read_archive(path).get(_FINGERPRINT) == fingerprint()


def ptx_of(kernel: Kernel, capability: tuple[int, int]) -> str:
    """The PTX of a kernel for a compute capability: stored if it is of these sources, compiled otherwise."""
    text = read_archive(ARCHIVE).get(_member(kernel, capability)) if is_current(ARCHIVE) else None
    return compile_ptx(kernel, capability) if text is None else text


def compile_ptx(kernel: Kernel, capability: tuple[int, int]) -> str:
    """Compile one kernel; its entry is called ``dgcl_`` and its name."""
    from numba import cuda, types

    function = kernel.build()
    text, _ = cuda.compile_ptx(function, types.void(*[types.int64] * kernel.num_parameters), cc=capability)
    entry = re.search(r"\.entry\s+(\w+)", text)
    assert entry is not None, text
    # Numba's variables for exceptions and for its runtime: our kernels have neither, and their names differ
    # from one compilation to the next.
    text = re.sub(r"(?m)^\.(visible|common) \.global .*;\n", "", text)
    text = text.replace(entry[1], f"dgcl_{kernel.name}")
    return re.sub(r"(?m)^\.version .*$", f".version {_VERSION}", text, count=1)


@cache
def fingerprint() -> str:
    """A hash of the kernels' sources, to tell whether stored PTX is still theirs."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(name.encode() + b"\0" + Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


def write_archive(
    path: Path, kernels: Iterable[Kernel], capabilities: Iterable[tuple[int, int]] = CAPABILITIES
) -> None:
    """Compile kernels into an archive. The same texts make the same bytes."""
    capabilities = tuple(capabilities)
    members = {_member(kernel, cc): compile_ptx(kernel, cc) for kernel in kernels for cc in capabilities}
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for name, text in {_FINGERPRINT: fingerprint(), **members}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


@cache
def read_archive(path: Path) -> dict[str, str]:
    """All texts of an archive by name; nothing when there is none."""
    if not path.is_file():
        return {}
    with tarfile.open(path, "r:xz") as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def _member(kernel: Kernel, capability: tuple[int, int]) -> str:
    return f"{kernel.name}.sm_{capability[0]}{capability[1]}.ptx"


if __name__ == "__main__" and not is_current(ARCHIVE):
    write_archive(ARCHIVE, catalogue().values())
