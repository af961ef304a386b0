"""Registered memory that grows with what is asked for."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

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
    """Rows in registered memory, in C order. ``imported``: torch's tensor of all of that memory, once one was made, by type."""

    def __init__(self, memory: _core.Memory, count: int, row_bytes: int, imported: dict[Any, Any] | None = None) -> None:
        self.count = count
        self.row_bytes = row_bytes
        self._whole = memory
        self._imported: dict[Any, Any] = {} if imported is None else imported

    @property
    def memory(self) -> _core.Memory:
        """Of these rows alone."""
        return self._whole[: self.count * self.row_bytes]

    @property
    def on_cpu(self) -> bool:
        return self._whole.device == "cpu"

    def bytes(self) -> NDArray[np.uint8]:
        """As an array of shape (count, row_bytes), without a copy. CPU memory only (BufferError)."""
        found: NDArray[np.uint8] = self.memory.numpy().reshape(self.count, self.row_bytes)
        return found

    def torch(self, dtype: Any, columns: int) -> Any:
        """As a tensor of shape (count, columns), without a copy. ``dtype``: torch's."""
        whole = self._imported.get((dtype, columns))
        if whole is None:
            torch = sys.modules["torch"]
            with torch.inference_mode(False):  # views of a tensor made in that mode stay in it
                flat = torch.from_dlpack(self._whole)
                most = flat.numel() // self.row_bytes
                whole = self._imported[dtype, columns] = flat[: most * self.row_bytes].view(dtype).view(most, columns)
        return whole.as_strided((self.count, columns), (columns, 1))  # in half the time of whole[: self.count]

    def repeat(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copies rows to others."""
        memory = self.memory
        memory.copy_blocks_from(memory, sources * self.row_bytes, targets * self.row_bytes, self.row_bytes)

    def clear(self, rows: NDArray[np.int64]) -> None:
        """Zeroes rows."""
        zeros = _core.Memory(self.row_bytes)
        self.memory.copy_blocks_from(zeros, np.zeros(len(rows), np.int64), rows * self.row_bytes, self.row_bytes)


class _Held(NamedTuple):
    buffer: _core.ConnBuffer
    memory: _core.Memory  # the buffer's; to ask for it takes microseconds
    nbytes: int
    descriptor: bytes
    imported: dict[Any, Any]  # of Area


class Growing:
    """A ConnBuffer, replaced by a larger one on demand. Old ones stay registered until close(). One thread at a time."""

    def __init__(self, comm: _core.Communicator, device: str = "cpu") -> None:
        self._comm = comm
        self._device = device
        self._old: list[_core.ConnBuffer] = []
        self._held = self._make(_PAGE)

    def _make(self, nbytes: int) -> _Held:
        nbytes = -(-nbytes // _PAGE) * _PAGE
        buffer = self._comm.buffer(nbytes, device=self._device)
        return _Held(buffer, buffer.memory, nbytes, bytes(buffer.descriptor()), {})

    @property
    def buffer(self) -> _core.ConnBuffer:
        return self._held.buffer

    @property
    def descriptor(self) -> bytes:
        """Names the buffer to other ranks."""
        return self._held.descriptor

    def rows(self, count: int, row_bytes: int) -> Area:
        """The first rows. OutOfMemoryError."""
        if self._held.nbytes < count * row_bytes:
            self._replace(max(count * row_bytes, 2 * self._held.nbytes))
        return Area(self._held.memory, count, row_bytes, self._held.imported)

    def retire(self) -> None:
        """Takes other memory from now on: a transfer that cannot be stopped may still write into this."""
        self._replace(self._held.nbytes)

    def _replace(self, nbytes: int) -> None:
        self._old.append(self.buffer)
        self._held = self._make(nbytes)  # an interrupt comes before or after

    def close(self, deadline: Deadline) -> None:
        """HmcTimeoutError where a peer may still read or write; HMC keeps the pages until then."""
        self._held.imported.clear()
        for buffer in [*self._old, self.buffer]:
            buffer.close(deadline.left())
