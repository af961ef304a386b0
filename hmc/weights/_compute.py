"""Digests and casts of memory: on a device by its kernel where HMC has one, else by the CPU, over copies."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc._core import ConnBuffer, Memory
from hmc.errors import OutOfMemoryError, UnsupportedError
from hmc.tensors import _dtypes
from hmc.weights._casts import cast_rows
from hmc.weights._digest import Band, Contents, Grid

__all__ = ["cast", "contents_of", "digest_of", "table_of"]

# What a kernel's call raises, before it has written anything, where the CPU is to compute: there is none, or not yet, or no memory.
_NOT_HERE = (UnsupportedError, OutOfMemoryError)
_COPY_BYTES = 16 << 20  # of device memory that the CPU digests, about: rows may be far apart


def contents_of(buffer: ConnBuffer) -> Contents:
    """The bytes of a buffer."""
    return buffer.numpy() if buffer.device == "cpu" else buffer.memory


def _host_copy(data: Memory) -> NDArray[np.uint8]:
    """A copy in CPU memory."""
    copy = Memory(data.nbytes)
    copy.copy_blocks_from(data, [0], [0], data.nbytes)
    found: NDArray[np.uint8] = copy.numpy()
    return found


def digest_of(grid: Grid, data: Contents, stride: int, first_row: int, rows: int, first: int, last: int) -> int:
    """As Grid.digest()."""
    if isinstance(data, Memory):
        with contextlib.suppress(*_NOT_HERE):
            return grid.digest(data, stride, first_row, rows, first, last)
        step, total = max(1, _COPY_BYTES // stride), 0
        for row in range(0, rows, step):
            copy = _host_copy(data[row * stride : min(data.nbytes, (row + step) * stride)])
            total += grid.digest(copy, stride, first_row + row, min(step, rows - row), first, last)
        return total & (1 << 64) - 1
    return grid.digest(data, stride, first_row, rows, first, last)


def table_of(grid: Grid, band: Band, data: Contents) -> NDArray[np.uint64]:
    """As Grid.table_of()."""
    if isinstance(data, Memory):
        with contextlib.suppress(*_NOT_HERE):
            return grid.table_of(band, data)
        data = _host_copy(data)
    return grid.table_of(band, data)


def cast(kinds: tuple[str, str], source: Contents, stride: int, target: Any, target_stride: int, rows: int, columns: int) -> None:
    """As cast_rows(), within the CPU's memory or a device's."""
    try:
        cast_rows(kinds, source, stride, target, target_stride, rows, columns)
    except _NOT_HERE:
        if not isinstance(source, Memory):
            raise
        size, made = _dtypes.size_of(kinds[0]), _dtypes.size_of(kinds[1])
        read = _host_copy(source[: ((rows - 1) * stride + columns) * size])
        written = np.empty(rows * columns * made, np.uint8)
        cast_rows(kinds, read, stride, written, columns, rows, columns)
        at = np.arange(rows, dtype=np.int64) * made
        target.copy_blocks_from(Memory.from_array(written), at * columns, at * target_stride, columns * made)
