"""Registered memory for short use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from hmc._core import Context
from hmc._deadline import Deadline
from hmc.errors import HmcError, OutOfMemoryError

__all__ = ["Scratch", "fitting"]

_SPARE = 8
_SPARE_SMALL = 16  # of at most 64 KiB: a pull has its words in several
_SPARE_LARGE = 2  # of at least 16 MiB
_ALIGNMENT = 4096

Made = TypeVar("Made")


def fitting(make: Callable[[int], Made], nbytes: int, least: int) -> Made:
    """Makes memory for short use of ``nbytes``, or where these are not free, of the largest half, quarter, ... of them that is.

    ``make`` raises OutOfMemoryError for a size that is not free. The user goes on with less memory, in more steps. Raises
    OutOfMemoryError where ``least`` bytes are not free either.
    """
    size = nbytes
    while True:
        try:
            return make(size)
        except OutOfMemoryError:
            if size <= least:
                raise
        size = max(least, size // 2 // _ALIGNMENT * _ALIGNMENT)


def _most_spare(nbytes: int) -> int:
    """How many buffers of a size are kept."""
    if nbytes <= 64 << 10:
        return _SPARE_SMALL
    return _SPARE if nbytes < 16 << 20 else _SPARE_LARGE


class Scratch:
    """Registered memory of the CPU and of devices that transfers use in turn. Any thread."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._lock = threading.Lock()
        self._spare: dict[tuple[str, int], list[Any]] = {}
        self._closed = False

    def take(self, nbytes: int, device: str = "cpu") -> Any:
        """A buffer of ``nbytes`` or more. OutOfMemoryError: not even without the spare ones of the device."""
        size = 4096
        while size < nbytes:
            size *= 2
        with self._lock:
            spare = self._spare.get((device, size))
            if spare and not self._closed:
                return spare.pop()
        try:
            return self._ctx.buffer(size, device, access="rw")
        except OutOfMemoryError:
            if not self._free_spare(device):
                raise
        return self._ctx.buffer(size, device, access="rw")

    def _free_spare(self, device: str) -> bool:
        """Frees the device's buffers that wait for their next use. False: there was none."""
        with self._lock:
            freed = [self._spare.pop(key) for key in list(self._spare) if key[0] == device]
        for buffer in (one for buffers in freed for one in buffers):
            with contextlib.suppress(HmcError):
                buffer.close(timeout=0)
        return any(freed)

    def give(self, buffer: Any) -> None:
        """Takes back what nothing uses any more. Any thread, that of a callback too: does not wait."""
        with self._lock:
            spare = self._spare.setdefault((buffer.device, buffer.nbytes), [])
            if len(spare) < _most_spare(buffer.nbytes) and not self._closed:
                spare.append(buffer)
                return
        with contextlib.suppress(HmcError):  # the Context is closed
            buffer.close(timeout=0)

    @property
    def spare(self) -> int:
        """Buffers that wait for their next use: at most 8 of a size and a device, 16 of small ones, 2 of large ones."""
        with self._lock:
            return sum(len(buffers) for buffers in self._spare.values())

    def close(self, deadline: Deadline) -> None:
        """Closes the buffers that are not in use. HmcTimeoutError: call it again. Idempotent."""
        with self._lock:
            self._closed = True
            spare = [buffer for buffers in self._spare.values() for buffer in buffers]
        for buffer in spare:
            buffer.close(timeout=deadline.left())
        with self._lock:
            self._spare = {}
