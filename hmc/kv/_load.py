"""Loads: tokens that are converted from where they lie in a peer's memory, without an operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from hmc._workers import run_on_thread
from hmc.errors import OutOfMemoryError
from hmc.kv._moves import Chunk

__all__ = ["OWN_THREAD_BYTES", "Load"]

OWN_THREAD_BYTES = 1 << 30  # bytes; of fewer the digests are read in less time than it takes to wake a thread


class Load:
    """Converts chunks from a peer's arrays, which this side can read, into a cache.

    wait() converts them; with ``beside`` another thread does, from the beginning of the ``with`` block. Nothing is written after
    the block. Not for several threads.
    """

    def __init__(self, load: Callable[[Chunk], int | None], todo: Iterator[Chunk], beside: bool) -> None:
        """``load``: converts a chunk and returns its digest; None: the device does not compute, or not yet."""
        self._load = load
        self._todo = todo
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._over = threading.Event()
        self._beside = beside
        self.refused = False  # the device does not compute, or not yet: the caller moves all of it by the transport
        self.nbytes = self.digest = 0  # of what was read
        self.packed_bytes = 0  # of the blocks that it lies in

    def __enter__(self) -> Load:
        if self._beside:
            try:
                run_on_thread(self._run, "hmc.kv load")
            except OutOfMemoryError:  # no more threads
                self._beside = False
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._beside:
            self._over.wait()
        self._error = None  # its traceback refers to what is to be freed

    def wait(self, look: Callable[[], None], pause: float) -> bool:
        """Whether all chunks have arrived; False: ``refused``. Calls ``look`` between chunks, or each ``pause`` seconds."""
        if self._beside:
            while not self._over.wait(pause):
                look()
        else:
            self._convert(look)
        if self._error is not None:
            raise self._error
        return not self.refused

    def _run(self) -> None:
        try:
            self._convert(lambda: None)
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def _convert(self, look: Callable[[], None]) -> None:
        for chunk in self._todo:
            look()
            if self._stopped.is_set():
                return
            found = self._load(chunk)
            if found is None:
                self.refused = True
                return
            self.digest += found
            self.packed_bytes += chunk.packed.buffer_bytes
            block_bytes = chunk.packed.buffer_bytes // len(chunk.far.blocks)
            self.nbytes += block_bytes * chunk.tokens // chunk.far.layout.block
