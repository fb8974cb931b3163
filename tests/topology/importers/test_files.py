"""One function for every format: what a file is, is told by its content; errors name the file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dgcl.topology.importers import import_topology
from tests.support.importer_cases import MATRIX, TABLES, XML
from tests.support.samples import named


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@named(
    "text",
    {
        "matrix": MATRIX,
        "xml": XML,
        "matrix with a byte order mark": "\ufeff" + MATRIX,
        "xml with a byte order mark": "\ufeff" + XML,
        "xml after empty lines": "\n \n" + XML,
        "xml in UTF-16": ('<?xml version="1.0" encoding="utf-16"?>' + XML).encode("utf-16"),
    },
)
def test_content_decides(text: str | bytes, tmp_path):
    imported = import_topology(write(tmp_path, "whatever.dat", text))
    assert [device.name for device in imported.topology.devices] == ["gpu0", "gpu1", "gpu2"]
    assert imported.topology.name == "whatever"


def test_name_model_and_measurements(tmp_path):
    matrix, tables = write(tmp_path, "m", MATRIX), write(tmp_path, "p", TABLES.replace("48.20", "48.00"))
    imported = import_topology(matrix, gpu="V100", name="mine")
    assert imported.topology.name == "mine"
    assert {c.kind: c.bandwidth for c in imported.topology.connections}["NV2"] == pytest.approx(48.4)
    measured = import_topology(matrix, p2p=tables).topology
    assert {c.kind: c.bandwidth for c in measured.connections}["NV2"] == 48.0


def test_a_model_that_the_file_contradicts(tmp_path):
    path = write(tmp_path, "m", XML)
    assert import_topology(path, gpu="V100").topology == import_topology(path).topology
    with pytest.raises(ValueError, match=r"GPU 0000:06:00.0 has sm 70, but a A100 has 80: is gpu right\?"):
        import_topology(path, gpu="A100")


@named(
    "text, message",
    {
        "empty": ("", "is empty"),
        "blank": (" \n", "is empty"),
        "a topology": ('{"schema": 1}', "is JSON: a topology file needs no import"),
        "tables alone": (TABLES, "refines a topology"),
        "prose": ("nothing of the kind", "line 1: expected the header"),
        "bytes": (b"\tGPU0\nGPU0\t\xff\n", "line 2: is not UTF-8 text"),
        "zeros": (b"\x00" * 50, "line 1"),
        "too large": (b" " * (17 << 20), "larger than 16 MB"),
    },
)
def test_refused(text: str | bytes, message: str, tmp_path):
    path = write(tmp_path, "f", text)
    with pytest.raises(ValueError, match=rf"^{path}: .*{message}"):
        import_topology(path)


def test_errors_of_the_tables_name_their_file(tmp_path):
    matrix, tables = write(tmp_path, "m", MATRIX), write(tmp_path, "p", TABLES.replace("48.00", "x"))
    with pytest.raises(ValueError, match=rf"^{tables}: line 13"):
        import_topology(matrix, p2p=tables)


def test_unknown_models_and_missing_files(tmp_path):
    for given, meant in (("H1O0", "H100"), ("RTX 409O", "4090")):
        with pytest.raises(
            ValueError, match=rf"gpu must be one of .*A100.*got '{given}'.*did you mean '{meant}'"
        ):
            import_topology(write(tmp_path, "m", MATRIX), gpu=given)
    with pytest.raises(FileNotFoundError, match=r"cannot read .*nowhere"):
        import_topology(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError, match="cannot read"):
        import_topology(tmp_path)


def test_only_files_and_standard_input_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: opening it would wait for ever
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match=r"cannot read .*: it is not a regular file"):
            import_topology(path)
    code = "from dgcl.topology.importers import import_topology as i; print(i('/dev/stdin').topology.num_devices)"
    found = subprocess.run(
        [sys.executable, "-c", code], input=MATRIX.encode(), stdout=subprocess.PIPE, check=True
    )
    assert found.stdout == b"3\n"
