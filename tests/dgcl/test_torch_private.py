"""Private names of torch stand in one module, and exist in the torch that is installed."""

import re

import pytest
import torch
import torch.distributed as dist

from tests.support_architecture import sources

#: Methods of objects that torch makes; the module's docstring says where they are called.
METHODS = {
    dist.ProcessGroup: ("_allgather_base", "_end_coalescing", "_start_coalescing"),
    torch.Tensor: ("_backward_hooks", "_indices", "_make_wrapper_subclass"),
    type(torch.ops.aten.add.Tensor): ("_schema",),
}
NAME = re.compile(
    r"\b(?:torch|forward_ad|dist)(?:\.\w+)*\._(?!_)\w+|\._(?:allgather_base|set_default_timeout|\w+_coalescing)\b"
)


def test_private_names_stand_in_one_module():
    private = {path for path in sources("dgcl") if NAME.search(path.read_text())}
    assert {path.name for path in private} == {
        "torch_private.py",
        "device_sums.py",
        "operators.py",
    }


@pytest.mark.parametrize("owner, name", [(owner, name) for owner, names in METHODS.items() for name in names])
def test_methods_exist(owner: type, name: str):
    target = torch.ops.aten.add.Tensor if name == "_schema" else owner
    assert hasattr(target, name)


def test_forward_mode_has_no_level_outside():
    assert torch.autograd.forward_ad._current_level == -1
