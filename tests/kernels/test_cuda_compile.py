"""Every CUDA kernel compiles for every GPU we name, without one at hand."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from dgcl.kernels.cuda_catalogue import (
    CAPABILITIES,
    Kernel,
    catalogue,
    fitting_capabilities,
    sum_name,
)
from dgcl.kernels.cuda_ptx import ARCHIVE, compile_ptx, is_current, ptx_of, write_archive
from dgcl.kernels.rows import SUMMABLE
from tests.support.samples import sampled


def has_compiler() -> bool:
    from numba.cuda.cudadrv.nvvm import NVVM

    try:
        NVVM()
    except Exception:  # numba's own class of error depends on its version
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs NVVM, of the CUDA toolkit")
PTXAS = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")

# A few of each kind; the rest take as long as they are many.
QUICK = ("begin", "signal_wait", "gather_16", "sum_float32_16", "sum_bfloat16_2")


@needs_compiler
@pytest.mark.parametrize(
    "name, capability",
    sampled(QUICK, CAPABILITIES, keep=lambda name, capability: name % len(CAPABILITIES) == capability),
    ids=lambda value: value if isinstance(value, str) else f"sm_{value[0]}{value[1]}",
)
def test_kernel_compiles(name: str, capability: tuple[int, int]):
    kernel = catalogue()[name]
    text = compile_ptx(kernel, capability)
    assert text.count(".entry") == 1
    head = text[text.index(".entry") : text.index("{")]
    assert head.startswith(f".entry dgcl_{name}(")
    assert head.count(".param .u64") == kernel.num_parameters
    assert f".target sm_{capability[0]}{capability[1]}" in text
    assert "call" not in text[text.index("{") :], "calls something instead of having it inline"


@pytest.mark.slow
@pytest.mark.skipif(PTXAS is None, reason="needs ptxas, of the CUDA toolkit")
@pytest.mark.parametrize("architecture", [*CAPABILITIES, (10, 0), (12, 0)], ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_every_kernel_assembles_without_spilling(architecture: tuple[int, int], tmp_path):
    """From the texts that are stored, as a GPU gets them; a multiprocessor holds four blocks of each."""
    newest = fitting_capabilities(architecture)[-1]
    texts = [ptx_of(kernel, newest) for kernel in catalogue().values()]
    head = re.compile(r"(?m)^\.(version|target|address_size) .*$")  # one for all
    whole = "\n".join([*(m[0] for m in head.finditer(texts[0])), *(head.sub("", text) for text in texts)])
    source = tmp_path / "kernels.ptx"
    source.write_text(whole)
    name = "sm_{}{}".format(*architecture)
    run = subprocess.run(
        [str(PTXAS), "-v", f"-arch={name}", source, "-o", tmp_path / name], capture_output=True
    )
    report = run.stderr.decode()
    assert run.returncode == 0, report
    registers = re.findall(r"Used (\d+) registers", report)
    assert len(registers) == len(texts)
    assert max(map(int, registers)) <= 64
    assert set(re.findall(r"(\d+) bytes (?:stack|spill)", report)) == {"0"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "kernel, loads, stores",
    [
        (catalogue()["gather_16"], {"ld.global.v4.u32": 4}, {"st.global.v4.u32": 4}),
        (catalogue()["gather_8"], {"ld.global.v2.u32": 4}, {"st.global.v2.u32": 4}),
        (catalogue()["gather_2"], {"ld.global.u16": 4}, {"st.global.u16": 4}),
        (catalogue()["sum_float32_16"], {"ld.global.v4.u32": 5}, {"st.global.v4.u32": 1}),
        # A wait reads its flag, the flag again, and the abort word; and sets that it has stopped.
        (
            catalogue()["signal_wait"],
            {"ld.acquire.sys.global.s64": 3, "nanosleep.u32": 1, "bar.sync": 1},
            {"st.release.sys.global.s64": 3},
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Kernel) else "",
)
def test_accesses_are_what_they_are_meant_to_be(
    kernel: Kernel, loads: dict[str, int], stores: dict[str, int]
):
    text = compile_ptx(kernel, (9, 0))
    for instruction, count in {**loads, **stores}.items():
        assert len(re.findall(rf"\s{re.escape(instruction)}\s", text)) == count, instruction
    # Rows never pass through local memory.
    assert not re.search(r"(ld|st)\.local|\.local \.", text)


def test_the_archive_is_of_these_sources_and_complete(monkeypatch):
    """After a change of the kernels: make kernels, and commit the archive."""
    assert is_current(ARCHIVE), "run: make kernels"

    def refuse(kernel: Kernel, capability: tuple[int, int]) -> str:
        raise AssertionError(f"{kernel.name} is not stored")

    monkeypatch.setattr("dgcl.kernels.cuda_ptx.compile_ptx", refuse)
    for kernel in catalogue().values():
        for capability in CAPABILITIES:
            assert f".entry dgcl_{kernel.name}(" in ptx_of(kernel, capability)


@pytest.mark.slow
@needs_compiler
def test_stored_ptx_is_used_while_it_is_of_these_sources(tmp_path, monkeypatch):
    kernel = catalogue()["signal_wait"]
    compiled = compile_ptx(kernel, (9, 0))
    with monkeypatch.context() as patch:
        patch.setattr("dgcl.kernels.cuda_ptx.compile_ptx", lambda kernel, capability: "as stored")
        for name in ("one", "two", "old"):
            if name == "old":
                patch.setattr("dgcl.kernels.cuda_ptx.fingerprint", lambda: "of other sources")
            write_archive(tmp_path / name, [kernel], [(9, 0)])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    for name, text in (("one", "as stored"), ("old", compiled), ("missing", compiled)):
        monkeypatch.setattr("dgcl.kernels.cuda_ptx.ARCHIVE", tmp_path / name)
        assert ptx_of(kernel, (9, 0)) == text, name
        assert ptx_of(kernel, (8, 0)).count(".entry dgcl_signal_wait(") == 1


def test_the_archive_travels_with_the_package():
    from importlib.resources import files

    assert files("dgcl.kernels").joinpath("cuda_ptx.tar.xz").is_file()
    assert ARCHIVE.stat().st_size < 100_000


@pytest.mark.parametrize(
    "capability, nearest", [((7, 5), (7, 5)), ((8, 6), (8, 0)), ((9, 0), (9, 0)), ((12, 0), (9, 0))]
)
def test_gpus_run_the_newest_ptx_they_can(capability: tuple[int, int], nearest: tuple[int, int]):
    assert fitting_capabilities(capability)[-1] == nearest


def test_gpus_that_are_too_old_are_named():
    with pytest.raises(ValueError, match=r"compute capability 7\.5 or newer, got 7\.0"):
        fitting_capabilities((7, 0))


def test_every_type_that_the_cpu_adds_can_be_added():
    sizes = {name: 2 if name == "bfloat16" else np.dtype(name).itemsize for name in SUMMABLE}
    wanted = {
        sum_name(name, unit) for name, size in sizes.items() for unit in (16, 8, 4, 2, 1) if unit >= size
    }
    assert wanted <= set(catalogue())
