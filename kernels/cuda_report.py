"""``python -m dgcl.kernels.cuda_report``: compile every CUDA kernel and report registers and spills.

GPUs newer than the newest PTX run that, which the driver translates for them: it is assembled for them here, too.
With ``--write`` the archive is written anew where it is not of these sources. The
exit status is 1 when a kernel does not compile, or spills, or uses so many registers that a
multiprocessor would hold fewer than four blocks of it. Without ``ptxas`` (a program of the CUDA toolkit)
kernels are compiled to PTX only.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dgcl.kernels.cuda_catalogue import CAPABILITIES, Kernel, catalogue, fitting_capabilities
from dgcl.kernels.cuda_ptx import ARCHIVE, compile_ptx, is_current, write_archive
from dgcl.kernels.cuda_shapes import THREADS

#: Compute capabilities that kernels are assembled for, each from the newest PTX that it runs.
ARCHITECTURES = (*CAPABILITIES, (10, 0), (12, 0))

#: 65536 registers of a multiprocessor, shared by four blocks.
MOST_REGISTERS = 65536 // (4 * THREADS)


@dataclass(frozen=True)
class Usage:
    """What one kernel takes of a GPU: registers per thread, and bytes of stack and spills per thread."""

    registers: int
    stack: int
    spilled: int

    @property
    def fits(self) -> bool:
        """Whether nothing spills and a multiprocessor holds four blocks."""
        return self.spilled == 0 and self.stack == 0 and self.registers <= MOST_REGISTERS

    def __str__(self) -> str:
        return f"{self.registers}" + f", {self.spilled} B spilled" * (self.spilled > 0)


def find_ptxas() -> str | None:
    """The path of ``ptxas``, or None."""
    return shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")


def assemble(ptxas: str, texts: dict[str, str], capability: tuple[int, int]) -> dict[str, Usage]:
    """Translate kernels for a GPU, all in one go.

    Args:
        ptxas: Path of the program.
        texts: PTX by kernel name, for this compute capability or an older one.
        capability: Compute capability of the GPU.

    Raises:
        RuntimeError: ptxas refuses one.
    """
    # Many entries may stand in one file, under one head.
    head = re.compile(r"(?m)^\.(version|target|address_size) .*$")
    first = next(iter(texts.values()))
    whole = "\n".join([*(m[0] for m in head.finditer(first)), *(head.sub("", t) for t in texts.values())])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.ptx")
        source.write_text(whole)
        arch = f"-arch=sm_{capability[0]}{capability[1]}"
        run = subprocess.run(
            [ptxas, "-v", arch, str(source), "-o", str(Path(folder, "kernels.cubin"))],
            capture_output=True,
            text=True,
        )
    if run.returncode:
        raise RuntimeError(f"{ptxas} {arch}: {(run.stdout + run.stderr).strip()}")
    usages = {}
    for part in run.stderr.split("Compiling entry function")[1:]:
        name = re.match(r" '(?:dgcl_)?(\w+)'", part)
        memory = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        )
        registers = re.search(r"Used (\d+) registers", part)
        if not (name and memory and registers):
            raise RuntimeError(f"{ptxas} {arch}: cannot read its report: {part}")
        usages[name[1]] = Usage(int(registers[1]), int(memory[1]), int(memory[2]) + int(memory[3]))
    return usages


def report(kernels: list[Kernel], ptxas: str | None) -> tuple[str, bool]:
    """A Markdown table, and whether all is well."""
    columns, good = [], True
    compiled = {
        known: {kernel.name: compile_ptx(kernel, known) for kernel in kernels} for known in CAPABILITIES
    }
    for capability in ARCHITECTURES:
        texts = compiled[fitting_capabilities(capability)[-1]]
        if ptxas is None:
            columns.append(["compiles" for _ in kernels])
            continue
        assembled = assemble(ptxas, texts, capability)
        usages = [assembled[kernel.name] for kernel in kernels]
        good &= all(usage.fits for usage in usages)
        columns.append([str(usage) for usage in usages])
    heads = " | ".join(f"sm_{major}{minor}" for major, minor in ARCHITECTURES)
    rows = [
        f"| {kernel.name} | " + " | ".join(cells) + " |"
        for kernel, *cells in zip(kernels, *columns, strict=True)
    ]
    return "\n".join([f"| kernel | {heads} |", "| --- |" + " --- |" * len(ARCHITECTURES), *rows]), good


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m dgcl.kernels.cuda_report", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the archive anew, if need be")
    chosen = parser.parse_args(arguments)
    ptxas = find_ptxas()
    table, good = report([*catalogue().values()], ptxas)
    if chosen.write and not is_current(ARCHIVE):
        write_archive(ARCHIVE, catalogue().values())
    sys.stdout.write(f"registers per thread{'' if ptxas else ' (no ptxas here)'}\n\n{table}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
