"""Stages: memory beside the shadow, for cells that are cast, or checked with columns that the target does not take."""

from __future__ import annotations

import threading

from hmc._core import ConnBuffer, Context
from hmc._scratch import fitting
from hmc._waits import SLICE
from hmc.errors import OutOfMemoryError
from hmc.weights._limits import Limits
from hmc.weights._remote import release

__all__ = ["LEAST_STAGE", "Stages"]

LEAST_STAGE = 2 << 20  # bytes; NVIDIA's devices have pages of that size. The smallest piece of a cell has 32 KiB


class Stages:
    """The stages of a pull, which its workers use in turn. Any thread.

    Where there is no room for a stage, workers go on with a smaller one, or wait for one that another worker uses.
    """

    def __init__(self, ctx: Context, device: str) -> None:
        self._ctx = ctx
        self._device = device
        self._changed = threading.Condition()
        self._spare: list[ConnBuffer] = []
        self._in_use = 0
        self._most: int | None = None  # bytes that had room when more had not

    def take(self, nbytes: int, limits: Limits, wait: bool) -> ConnBuffer | None:
        """A stage of ``nbytes``, or a smaller one of LEAST_STAGE or more.

        None: there is no room until a stage is given back. With ``wait`` it waits for that, for a worker that has no stage itself.
        Raises OutOfMemoryError if there is no room and no stage is in use, or the error that ends the pull.
        """
        with self._changed:
            while True:
                wanted = nbytes if self._most is None else min(nbytes, self._most)
                try:
                    stage = self._taken(wanted)
                except OutOfMemoryError as error:
                    if self._in_use == 0:
                        raise OutOfMemoryError(
                            f"the pull has no room for a stage on {self._device}: {nbytes} bytes were wanted, "
                            f"{min(nbytes, LEAST_STAGE)} suffice: free memory of {self._device}, or plan() with another shadow= "
                            f"({error})",
                            error.native,
                        ) from None
                else:
                    if stage.nbytes < wanted:
                        self._most = stage.nbytes
                    self._in_use += 1
                    return stage
                if not wait:
                    return None
                self._changed.wait(SLICE)
                limits.check()

    def _taken(self, nbytes: int) -> ConnBuffer:
        least = min(nbytes, LEAST_STAGE)
        spare = max(self._spare, key=lambda stage: stage.nbytes, default=None)
        if spare is not None and spare.nbytes < least:
            spare = None
            self._free_spare()
        made = None
        if spare is None or spare.nbytes < nbytes:
            try:
                made = fitting(self._made, nbytes, least if spare is None else nbytes)
            except OutOfMemoryError:
                if spare is None:  # else it serves: what is freed to make room may be free only a moment later
                    raise
        if made is None:
            assert spare is not None
            self._spare.remove(spare)
            return spare
        self._free_spare()  # else stages of rising sizes leave one each
        return made

    def _made(self, nbytes: int) -> ConnBuffer:
        return self._ctx.buffer(nbytes, device=self._device)

    def _free_spare(self) -> None:
        while self._spare:
            release(self._spare.pop())

    def give(self, stage: ConnBuffer) -> None:
        """Takes back a stage that nothing writes into any more."""
        with self._changed:
            self._in_use -= 1
            self._spare.append(stage)
            self._changed.notify_all()

    def discard(self, stage: ConnBuffer) -> None:
        """Frees a stage once nothing writes into it any more."""
        release(stage)
        with self._changed:
            self._in_use -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Frees the spare ones. After the last use."""
        with self._changed:
            self._free_spare()
