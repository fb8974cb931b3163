"""Private names of torch stand in one module, and exist in the torch that is installed."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dgcl.ranks.torch_private import gloo_timed_out
from tests.support.source_files import sources

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


def test_a_wait_of_gloo_that_times_out_is_told_from_one_that_breaks():
    store = dist.HashStore()
    late = timedelta(milliseconds=20)

    def rank(place: int) -> str:
        group = dist.ProcessGroupGloo(dist.PrefixStore("pair", store), place, 2, timedelta(seconds=20))
        met.wait()
        if place == 0:
            with pytest.raises(RuntimeError) as timed_out:
                group.recv([torch.empty(1)], 1, 0).wait(late)
            del group  # which breaks the connection of the other
            return str(timed_out.value)
        with pytest.raises(RuntimeError) as broken:
            group.recv([torch.empty(1)], 0, 0).wait(timedelta(seconds=20))
        return str(broken.value)

    met = threading.Barrier(2)
    with ThreadPoolExecutor(2) as ranks:
        texts = list(ranks.map(rank, range(2)))
    assert [gloo_timed_out(text) for text in texts] == [True, False]


def test_forward_mode_has_no_level_outside():
    assert torch.autograd.forward_ad._current_level == -1
