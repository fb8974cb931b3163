"""Copy rates of this host: the best counts, stored for the machine, and what was taken is logged."""

import json
import logging
import tracemalloc
from pathlib import Path

import pytest

from dgcl.topology import copy_rates as module
from dgcl.topology import measure_host, preset
from dgcl.topology.copy_rates import CopyRates, copy_rates, measure_copy_rates, rates_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder without any rates."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[CopyRates]:
    """The results of measurements to come."""
    results: list[CopyRates] = []
    monkeypatch.setattr(module, "measure_copy_rates", lambda copiers: results.pop(0))
    return results


def test_the_best_of_all_measurements_stays(measured: list[CopyRates], caplog):
    measured += [CopyRates(8.0, 9.0), CopyRates(0.9, 11.0)]
    with caplog.at_level(logging.INFO, logger="dgcl"):
        assert copy_rates(2) == CopyRates(8.0, 9.0)
        assert copy_rates(2) == CopyRates(8.0, 9.0)  # stored: not measured again
        assert copy_rates(2, anew=True) == CopyRates(8.0, 11.0)
    assert not measured
    assert [message.partition("thread, ")[2] for message in caplog.messages] == [
        "9 GB/s by 2 together",
        "9 GB/s by 2 together",
        "11 GB/s by 2 together",
    ]


def test_rates_are_those_of_a_machine_and_a_number_of_threads(measured: list[CopyRates], monkeypatch):
    measured += [CopyRates(8.0, 9.0), CopyRates(8.0, 16.0), CopyRates(5.0, 5.0)]
    assert [copy_rates(n).all for n in (2, 4, 2)] == [9.0, 16.0, 9.0]
    monkeypatch.setattr("platform.node", lambda: "another")
    assert copy_rates(2) == CopyRates(5.0, 5.0)
    assert len(json.loads(rates_file().read_text())) == 3


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"a": 1}', '{"a": {"one": -1, "all": 1}}', '{"a": {"one": "x"}}']
)
def test_a_damaged_file_is_measured_anew(text: str, measured: list[CopyRates]):
    rates_file().parent.mkdir()
    rates_file().write_text(text)
    measured.append(CopyRates(8.0, 9.0))
    assert copy_rates(2) == copy_rates(2) == CopyRates(8.0, 9.0)


def test_a_home_that_cannot_be_written(home: Path, measured: list[CopyRates], caplog):
    (home / "dgcl").write_text("a file where the folder would be")
    measured.append(CopyRates(8.0, 9.0))
    with caplog.at_level(logging.INFO, logger="dgcl"):
        assert copy_rates(2) == CopyRates(8.0, 9.0)
    assert "copy rates are not stored: " in caplog.text


def test_a_hosts_topology_has_its_rates(measured: list[CopyRates]):
    measured.append(CopyRates(8.0, 9.0))
    topology = measure_host(2)
    rates = {wire.name: wire.bandwidth for wire in topology.connections}
    assert topology.name == "host2"
    assert rates == {"memory": 9.0, "store0": 9.0, "store1": 9.0, "core0": 8.0, "core1": 8.0}
    assert measure_host(2, anew=False) == topology
    assert preset("host:2") == preset("host:2")


@pytest.mark.parametrize("copiers", [1, 3])
def test_measuring_gives_positive_rates_of_two_digits_and_takes_little_memory(copiers: int):
    tracemalloc.start()
    try:
        rates = measure_copy_rates(copiers)
        assert tracemalloc.get_traced_memory()[1] < 140e6
    finally:
        tracemalloc.stop()
    assert 0.05 < rates.one < 1e4
    assert all(float(f"{rate:.1e}") == rate for rate in (rates.one, rates.all))
    assert rates.one <= rates.all
    assert (rates.one == rates.all) or copiers > 1
