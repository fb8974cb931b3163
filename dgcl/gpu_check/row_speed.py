"""How fast the row kernels are, as a share of what the device's own copy moves in the same run.

Bytes are those of rows, read plus written; tables of indices are not counted. Much more is moved than fits
into any cache. Every line is verified to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from dgcl.gpu_check.gather_speed import measure_gather
from dgcl.gpu_check.gpu import Target
from dgcl.gpu_check.measurement import HEAD, Line, Size, copy_speed
from dgcl.gpu_check.sum_speed import measure_sum
from dgcl.kernels.cuda_catalogue import variants

#: The share of the copy's speed that these widths must reach.
SHARE: Final = 0.85
WITH_TARGET: Final = (
    *(("float32", width) for width in (64, 128, 256, 512, 1024)),
    *(("bfloat16", width) for width in (128, 256, 512, 1024)),
)
#: Others: narrow, odd, and wide elements.
WITHOUT_TARGET: Final = (
    ("float32", 602),
    ("float32", 16),
    ("float32", 1),
    ("bfloat16", 129),
    ("float16", 256),
    ("float64", 128),
)


def run_rows(target: Target, size: Size, say: Callable[[str], object]) -> list[Line]:
    """Every width, both kernels, rows in random and in ascending order."""
    copy = copy_speed(target, size)
    widths = [*((*width, SHARE) for width in WITH_TARGET), *((*width, None) for width in WITHOUT_TARGET)]

    def lines() -> Iterable[Line]:
        # Those with a target first: a part may be out of time.
        for element, width, share in widths:
            yield measure_gather(target, size, element, width, copy, order="random", share=share)
            yield measure_sum(target, size, element, width, copy, share=share)
        for element, width, share in widths:
            yield measure_gather(target, size, element, width, copy, order="sorted", share=share)

    return _said(copy, lines(), say)


def run_variants(target: Target, size: Size, say: Callable[[str], object]) -> list[Line]:
    """The gather with other numbers of loads under way, cache hints, threads and blocks: which is best?"""
    copy = copy_speed(target, size)

    def lines() -> Iterable[Line]:
        for element, width in (("float32", 128), ("bfloat16", 128)):
            for kernel in variants():
                yield measure_gather(target, size, element, width, copy, kernel=kernel, compare=False)
            for threads, part in ((128, 1.0), (512, 1.0), (1024, 1.0), (256, 0.5), (256, 0.25)):
                yield measure_gather(
                    target, size, element, width, copy, threads=threads, blocks_share=part, compare=False
                )

    return _said(copy, lines(), say)


def _said(copy: float, lines: Iterable[Line], say: Callable[[str], object]) -> list[Line]:
    say(f"Device-to-device copy: {copy:.0f} GB/s, read plus written.\n")
    say(HEAD)
    done = []
    for line in lines:
        say(str(line))
        done.append(line)
    say("")
    return done
