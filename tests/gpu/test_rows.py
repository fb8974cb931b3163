"""Row kernels on a GPU: every bit, and the speed as a share of the device's own copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dgcl.kernels.cuda_catalogue import variants
from tests.gpu.device import Gpu
from tests.gpu.row_speed import (
    HEAD,
    SHARE,
    WITH_TARGET,
    WITHOUT_TARGET,
    Line,
    Size,
    copy_speed,
    measure_gather,
    measure_sum,
)

pytestmark = pytest.mark.gpu
Say = Callable[[str], None]
Found = Callable[[dict[str, Any]], None]


def hold(lines: Iterable[Line], copy: float, say: Say, found: Found) -> None:
    """Print lines as they come; fail for those that are wrong or miss their target."""
    say(f"\nDevice-to-device copy: {copy:.0f} GB/s, read plus written.\n\n{HEAD}")
    done = []
    for line in lines:
        say(str(line))
        done.append(line)
    say("")
    found({"lines": [line.to_json() for line in done]})
    assert [str(line) for line in done if not line.good] == []


#: Enough that every kernel has several blocks and peers.
LITTLE = Size(num_bytes=1 << 20, num_peers=3, repeats=1)


def test_rows_right(gpu: Gpu, say: Say, found: Found) -> None:
    """Both kernels at every width, to the bit, before anything that takes long; speeds are no speeds here."""

    def lines() -> Iterable[Line]:
        for element, width in (*WITH_TARGET, *WITHOUT_TARGET):
            for order in ("random", "sorted"):
                yield measure_gather(gpu, LITTLE, element, width, 1.0, order=order, compare=False)
            yield measure_sum(gpu, LITTLE, element, width, 1.0)

    done = []
    for line in lines():
        done.append(line)
        say(f"{line.what} of {line.width} {line.element}, {line.order}: {'right' if line.right else 'WRONG'}")
    found({"right": sum(line.right for line in done), "of": len(done)})
    assert [str(line) for line in done if not line.right] == []


def test_rows(gpu: Gpu, size: Size, say: Say, found: Found) -> None:
    copy = copy_speed(gpu, size)
    widths = [*((*width, SHARE) for width in WITH_TARGET), *((*width, None) for width in WITHOUT_TARGET)]

    def lines() -> Iterable[Line]:
        # Those with a target first: a part may be out of time.
        for element, width, share in widths:
            yield measure_gather(gpu, size, element, width, copy, order="random", share=share)
            yield measure_sum(gpu, size, element, width, copy, share=share)
        for element, width, share in widths:
            yield measure_gather(gpu, size, element, width, copy, order="sorted", share=share)

    hold(lines(), copy, say, found)


def test_variants(gpu: Gpu, size: Size, say: Say, found: Found) -> None:
    """The gather with other numbers of loads under way, cache hints, threads and blocks: which is best?"""
    copy = copy_speed(gpu, size)

    def lines() -> Iterable[Line]:
        for element, width in (("float32", 128), ("bfloat16", 128)):
            for kernel in variants():
                yield measure_gather(gpu, size, element, width, copy, kernel=kernel, compare=False)
            for threads, share in ((128, 1.0), (512, 1.0), (1024, 1.0), (256, 0.5), (256, 0.25)):
                yield measure_gather(
                    gpu, size, element, width, copy, threads=threads, blocks_share=share, compare=False
                )

    hold(lines(), copy, say, found)
