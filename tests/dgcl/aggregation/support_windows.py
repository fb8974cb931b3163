"""What :mod:`tests.dgcl.aggregation.test_windows` shares with other tests."""

from typing import Any

from tests.support.aggregator import (
    CASE_BY_NAME,
)

WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "1": {"windows": 1},
    "2": {"windows": 2},
    "5": {"windows": 5},
    "owner": {"by": "owner"},
}


def most_windows(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options for a case, which may have fewer vertices than windows."""
    windows = options.get("windows")
    return options if windows is None else {"windows": min(windows, CASE_BY_NAME[name].num_nodes)}
