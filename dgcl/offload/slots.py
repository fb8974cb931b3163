"""Rows on their way between host memory, slots, and the slots of other ranks: the moves of one batch."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from dgcl.offload.account import Account
from dgcl.offload.batch_tables import HostRows, Swap
from dgcl.offload.host_store import HostStore
from dgcl.offload.placing import add_rows, bytes_of_row, put_rows
from dgcl.offload.residency import Ids
from dgcl.transport.base import Transport


class Mover:
    """Carries out the tables of a rank.

    Args:
        store: Host memory.
        transport: Between ranks; None where no rank ever sends a row.
        account: Where moves are counted.
        prefetch: Whether a thread has the kernel read the files' rows of the next batch while this one is computed.
    """

    def __init__(
        self, store: HostStore, transport: Transport | None, account: Account, prefetch: bool
    ) -> None:
        self.store, self.transport, self.account = store, transport, account
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="dgcl prefetch") if prefetch else None

    def load_ahead(self, inputs: Sequence[Tensor], load: HostRows) -> None:
        """Begin to read what :meth:`bring` is to bring next."""
        if self._helper is None:
            return
        for x in inputs:
            self._helper.submit(self.store.asking_for(x, _index(load.rows)))

    def close(self) -> None:
        """End the thread."""
        if self._helper is not None:
            self._helper.shutdown(cancel_futures=True)

    def reserve(self, rows: int, row_bytes: int) -> None:
        """Have a buffer for the most rows that travel at a time: pieces of smaller batches would be too small."""
        if self.transport is not None:
            self.transport.empty((rows * row_bytes + 512,), torch.uint8)

    def bring(
        self,
        inputs: Sequence[Tensor],
        slots: Sequence[Tensor],
        load: HostRows,
        swap: Swap | None,
        again: bool,
    ) -> None:
        """Load rows of this rank into slots, then get those of others. Collective where ``swap`` is."""
        suffix = "_again" if again else ""
        for x, held in zip(inputs, slots, strict=True):
            self.store.load(x, _index(load.rows), held, _index(load.slots))
            self.account.add(f"loaded{suffix}", len(load.rows), bytes_of_row(x))
        if swap is None:
            return
        assert self.transport is not None
        for held in slots:
            came = self.transport.begin_expand(
                held.index_select(0, _index(swap.send).to(held.device)), swap.number, wait=True
            ).wait()
            put_rows(held, _index(swap.receive), came)
            self.account.add(f"exchanged{suffix}", len(swap.receive), bytes_of_row(held))

    def give_back(
        self,
        gradients: Sequence[Tensor | None],
        slots: Sequence[Tensor | None],
        load: HostRows,
        swap: Swap | None,
    ) -> None:
        """Return gradients to the owners of rows, then this rank's to host memory. Collective where ``swap`` is."""
        for held in slots:
            if swap is None or held is None:
                continue
            assert self.transport is not None
            mine = held.index_select(0, _index(swap.receive).to(held.device))
            sums = held.new_zeros((len(swap.send), *held.shape[1:]))
            self.transport.begin_fold(mine, swap.number, wait=True).wait(sums)
            add_rows(held, _index(swap.send), sums)
            self.account.add("exchanged_again", len(swap.receive), bytes_of_row(held))
        written, added = (tuple(map(_index, pair)) for pair in load.first_and_again)
        for grad, held in zip(gradients, slots, strict=True):
            if grad is None or held is None:
                continue
            self.store.unload(grad, written[0], held, written[1])
            self.store.add(grad, added[0], held, added[1])
            self.account.add("gradients_out", len(load.rows), bytes_of_row(held))


def _index(ids: Ids) -> Tensor:
    return torch.from_numpy(ids)
