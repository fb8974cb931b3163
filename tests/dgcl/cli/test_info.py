"""`dgcl info`: what is there, without importing it."""

import numpy as np

import dgcl
from tests.dgcl.cli.support import Run


def test_json(run: Run):
    found = run("info", "--json").json
    assert found["dgcl"] == dgcl.__version__
    assert found["packages"]["numpy"] == np.__version__
    assert set(found["packages"]) >= {"torch", "dgl", "torch_geometric", "matplotlib"}
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_bytes"] > 10**8


def test_text_names_missing_packages(run: Run, monkeypatch):  # type: ignore[no-untyped-def]
    import importlib.metadata as metadata

    def version(package: str) -> str:
        if package == "dgl":
            raise metadata.PackageNotFoundError(package)
        return "9.9"

    monkeypatch.setattr(metadata, "version", version)
    lines = [line.split() for line in run("info").out.splitlines()]
    assert ["dgl", "missing", "comm.local_graph('dgl')"] in lines
    assert ["torch", "9.9", "required"] in lines


def test_a_report_has_settings_and_no_other_variable(run: Run, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("API_TOKEN", "s3cret")
    outcome = run("info", "--json")
    assert outcome.json["environment"]["GLOO_SOCKET_IFNAME"] == "eth7"
    assert "s3cret" not in outcome.out + run("info").out


def test_the_check_finds_wrong_rows_and_errors(run: Run, monkeypatch):
    from dgcl.communicator import Communicator

    outcome = run("info", "--check", "--json")
    assert (outcome.status, outcome.json["check"]["right"]) == (0, True)
    right = Communicator.expand
    monkeypatch.setattr(Communicator, "expand", lambda comm, rows: right(comm, rows) + 1)
    outcome = run("info", "--check")
    assert outcome.status == 1
    assert "rows that arrived were wrong" in outcome.out

    def broken(comm: Communicator, rows: object):
        raise RuntimeError("no luck")

    monkeypatch.setattr(Communicator, "expand", broken)
    outcome = run("info", "--check", "--json")
    assert outcome.status == 1
    assert "RuntimeError: no luck" in outcome.json["check"]["error"]
