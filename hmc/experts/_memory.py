"""Registered memory that grows with what is asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc._deadline import Deadline

_PAGE = 4096


class Counts:
    """What a Buffer counts, by name. One thread at a time adds; any thread reads."""

    def __init__(self) -> None:
        self._found = {"bytes_staged": 0, "sums_on_device": 0, "sums_on_cpu": 0}

    def add(self, name: str, amount: int = 1) -> None:
        """Adds to a counter."""
        self._found[name] += amount

    def copy(self, target: _core.Memory, source: _core.Memory) -> None:
        """Copies rows between memories of equal size. ``bytes_staged`` counts them unless both are of one vendor's devices."""
        if source.nbytes == 0:
            return
        if source.device.partition(":")[0] != target.device.partition(":")[0]:
            self.add("bytes_staged", source.nbytes)
        target.copy_blocks_from(source, [0], [0], source.nbytes)

    def all(self) -> dict[str, int]:
        """A copy."""
        return dict(self._found)


class Area:
    """Rows in registered memory, in C order."""

    def __init__(self, memory: _core.Memory, count: int, row_bytes: int) -> None:
        self.memory = memory[: count * row_bytes]
        self.count = count
        self.row_bytes = row_bytes

    def bytes(self) -> NDArray[np.uint8]:
        """As an array of shape (count, row_bytes), without a copy. CPU memory only (BufferError)."""
        found: NDArray[np.uint8] = self.memory.numpy().reshape(self.count, self.row_bytes)
        return found

    def repeat(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copies rows to others."""
        self.memory.copy_blocks_from(self.memory, sources * self.row_bytes, targets * self.row_bytes, self.row_bytes)

    def clear(self, rows: NDArray[np.int64]) -> None:
        """Zeroes rows."""
        zeros = _core.Memory(self.row_bytes)
        self.memory.copy_blocks_from(zeros, np.zeros(len(rows), np.int64), rows * self.row_bytes, self.row_bytes)


class Growing:
    """A ConnBuffer, replaced by a larger one on demand. Old ones stay registered until close(). One thread at a time."""

    def __init__(self, comm: _core.Communicator, device: str = "cpu") -> None:
        self._comm = comm
        self._device = device
        self._old: list[_core.ConnBuffer] = []
        self.buffer = comm.buffer(_PAGE, device=device)
        self.descriptor = bytes(self.buffer.descriptor())

    def ensure(self, nbytes: int) -> _core.ConnBuffer:
        """The buffer, with at least so many bytes. OutOfMemoryError."""
        if self.buffer.nbytes < nbytes:
            self._replace(max(nbytes, 2 * self.buffer.nbytes))
        return self.buffer

    def rows(self, count: int, row_bytes: int) -> Area:
        """The first rows."""
        return Area(self.ensure(count * row_bytes).memory, count, row_bytes)

    def retire(self) -> None:
        """Takes other memory from now on: a transfer that cannot be stopped may still write into this."""
        self._replace(self.buffer.nbytes)

    def _replace(self, nbytes: int) -> None:
        self._old.append(self.buffer)
        self.buffer = self._comm.buffer(-(-nbytes // _PAGE) * _PAGE, device=self._device)
        self.descriptor = bytes(self.buffer.descriptor())

    def close(self, deadline: Deadline) -> None:
        """HmcTimeoutError where a peer may still read or write; HMC keeps the pages until then."""
        for buffer in [*self._old, self.buffer]:
            buffer.close(deadline.left())
