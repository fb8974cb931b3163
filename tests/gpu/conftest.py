"""The ``gpu`` tests of this folder are skipped where there is no device."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu") is not None and "tests/gpu/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
