"""Loads: tokens that are converted from where they lie in a peer's memory, without an operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from hmc._waits import SLICE
from hmc._workers import run_on_thread
from hmc.errors import OutOfMemoryError
from hmc.kv._cache import Cache
from hmc.kv._moves import Chunk

__all__ = ["BESIDE", "Load"]

BESIDE = 1 << 30  # bytes; of fewer the digests are read in less time than it takes to wake a thread


class Load:
    """Converts chunks from a peer's arrays, which this side can read, into a cache.

    In wait(), or with ``beside`` from the start on, on a thread of its own. At the end of the ``with`` block nothing is written any
    more. One thread.
    """

    def __init__(
        self, cache: Cache, there: list[Any], todo: Iterator[Chunk], position: int, digest: bool, beside: bool = False
    ) -> None:
        self._cache = cache
        self._there = there
        self._todo = todo
        self._position = position
        self._with_digest = digest
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._over = threading.Event()
        self._beside = beside
        self.refused = False  # the device does not compute, or not yet: all of it is to be moved otherwise
        self.nbytes = self.digest = 0  # of what was read

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

    def wait(self, look: Callable[[], None], pause: float = SLICE) -> bool:
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
            found = self._cache.load(chunk, self._there, self._position + chunk.token, self._with_digest)
            if found is None:
                self.refused = True
                return
            self.digest += found
            block_bytes = chunk.packed.buffer_bytes // len(chunk.far.blocks)
            self.nbytes += block_bytes * chunk.tokens // chunk.far.layout.block
