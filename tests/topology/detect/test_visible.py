"""CUDA_VISIBLE_DEVICES, as CUDA reads it."""

import pytest

from dgcl.topology.detect import visible_gpus
from tests.support.fake_host import gpu
from tests.support.samples import named

GPUS = [gpu(index, f"0000:0{index}:00.0") for index in range(4)]


@named(
    "visible, chosen",
    {
        "not set": (None, [0, 1, 2, 3]),
        "numbers in another order": ("2,0", [2, 0]),
        "blanks": (" 1 , 3 ", [1, 3]),
        "none": ("", []),
        "minus one": ("-1", []),
        "what follows a wrong number is not looked at": ("1,9,0", [1]),
        "what follows no number is not looked at": ("1,x,0", [1]),
        "what follows a repetition is not looked at": ("2,2,1", [2]),
        "UUIDs, also cut": ("GPU-0003-abcd,GPU-0001", [3, 1]),
        "a word": ("NoDevFiles", []),
    },
)
def test_chosen(visible: str | None, chosen: list[int]):
    assert [gpu.index for gpu in visible_gpus(GPUS, visible)] == chosen


@pytest.mark.parametrize(
    "visible, message",
    [
        ("MIG-1234", "names a part of a GPU .'MIG-1234'."),
        ("GPU-000", "'GPU-000' is the beginning of 4 UUIDs"),
    ],
)
def test_refused(visible: str, message: str):
    with pytest.raises(ValueError, match=message):
        visible_gpus(GPUS, visible)
