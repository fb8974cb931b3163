"""Numbers with units, aligned tables, and JSON that any reader accepts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dgcl.cli.output import print_json, print_table


def test_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("part", "vertices"), [("0", "10"), ("total", "1000")])
    assert capsys.readouterr().out == "part   vertices\n0            10\ntotal      1000\n"


def test_json_takes_numpy_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": np.int64(3), "b": np.array([1.5, 2.5]), "c": np.bool_(True), "d": None})
    assert json.loads(capsys.readouterr().out) == {"a": 3, "b": [1.5, 2.5], "c": True, "d": None}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan"), object()])
def test_json_refuses_what_json_has_not(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        print_json({"a": value})
