"""`dgcl info`: what is there, without importing it."""

from __future__ import annotations

import numpy as np

import dgcl
from tests.dgcl.cli.support import Run


def test_json(run: Run) -> None:
    found = run("info", "--json").json
    assert found["dgcl"] == dgcl.__version__
    assert found["packages"]["numpy"] == np.__version__
    assert set(found["packages"]) >= {"torch", "dgl", "torch_geometric", "matplotlib"}
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_bytes"] > 10**8
    assert found["compiled_cache"]["functions"] >= 0


def test_text_names_missing_packages(run: Run, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    import importlib.metadata as metadata

    def version(package: str) -> str:
        if package == "dgl":
            raise metadata.PackageNotFoundError(package)
        return "9.9"

    monkeypatch.setattr(metadata, "version", version)
    lines = [line.split() for line in run("info").out.splitlines()]
    assert ["dgl", "missing", "comm.local_graph('dgl')"] in lines
    assert ["torch", "9.9", "required"] in lines
