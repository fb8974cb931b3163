"""Tests whether NCCL runs between a number of ranks here, in separate processes with a timeout.

NCCL refuses two ranks on one GPU, unless a version that can is told to by ``NCCL_MULTI_RANK_GPU_ENABLE=1``; and where
it does not refuse it may hang, inside a call that cannot be interrupted. So nobody else is asked to try.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

_MODULE: Final = "dgcl.bench.on_device.nccl"
_WORDS: Final = 300


def try_nccl(num_ranks: int, timeout: float = 40.0) -> str:
    """Why NCCL does not exchange between ``num_ranks`` ranks on this machine's GPUs; "" if it does."""
    with tempfile.TemporaryDirectory(prefix="dgcl-nccl-") as folder:
        outputs = [Path(folder, f"rank-{rank}") for rank in range(num_ranks)]
        processes = []
        try:
            for rank, output in enumerate(outputs):
                command = [
                    sys.executable,
                    "-m",
                    _MODULE,
                    str(Path(folder, "store")),
                    str(rank),
                    str(num_ranks),
                ]
                with output.open("w") as stream:
                    processes.append(subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT))
            end = time.monotonic() + timeout
            for process in processes:
                try:
                    process.wait(max(end - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    return f"no answer within {timeout:g} s"
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, output in zip(processes, outputs, strict=True):
            if process.returncode != 0:
                return " ".join(output.read_text(errors="replace").split())[-_WORDS:]
    return ""


def _one_rank(store: str, rank: int, num_ranks: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        "nccl",
        store=dist.FileStore(store, num_ranks),
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=30),
    )
    mine = torch.arange(num_ranks, device="cuda") + num_ranks * rank
    out = torch.empty_like(mine)
    dist.all_to_all_single(out, mine)
    torch.cuda.synchronize()
    if out.tolist() != [rank + num_ranks * other for other in range(num_ranks)]:
        raise SystemExit(f"wrong rows: {out.tolist()}")


if __name__ == "__main__":
    _one_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
