"""Digests of parts of a shard: each row is divided into chunks, and each chunk of each row has a number in the shard's table.

The numbers are those of hmc.layout, so they add up: the digest of a box of whole chunks is the sum of its chunks' numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmc import layout
from hmc._core import Memory
from hmc.errors import UnsupportedError
from hmc.layout import Layout

__all__ = ["Band", "Contents", "Grid", "Strided"]

#: Bytes of the CPU, or memory of a device.
Contents = NDArray[np.uint8] | Memory

_CHUNK = 1024  # bytes at least; a chunk is a quarter of a row: fewer are quicker, more let columns be cut without copies
_CHUNKS = 4
_LARGEST = 16384  # words of a chunk, and
_MOST = 65536  # chunks of a row: what a Layout takes
_MASK = (1 << 64) - 1


@functools.lru_cache(maxsize=4096)
def _layout(text: str) -> Layout:
    return Layout(text)


class Band(NamedTuple):
    """Chunks [first, last) of some rows of a shard, and which of its bytes they are. More than one row: all chunks."""

    row: int
    rows: int
    first: int
    last: int
    at: int
    nbytes: int


class Strided(NamedTuple):
    """Rows in CPU memory, ``stride`` bytes apart."""

    data: NDArray[np.uint8]
    stride: int


class Grid:
    """The chunks of a shard in C order. A shard of one axis, or of none, is one row."""

    def __init__(self, extents: Sequence[int], itemsize: int) -> None:
        self.itemsize = itemsize
        self.columns = extents[-1] if extents else 1
        self.rows = math.prod(extents[:-1])
        self.word, self.dtype = (2, "bf16") if self.columns * itemsize % 2 == 0 else (1, "f8_e4m3fn")
        nbytes = -(-self.columns * itemsize // (64 * _CHUNKS)) * 64
        nbytes = min(max(nbytes, _CHUNK), _LARGEST * self.word)
        self.chunk = nbytes // itemsize  # elements
        self.chunks = -(-self.columns // self.chunk)  # of a row
        if self.chunks > _MOST:
            raise UnsupportedError(
                f"a row of {self.columns * itemsize} bytes has no digest: the limit is {_MOST * nbytes}; reshape it"
            )

    @property
    def entries(self) -> int:
        """Numbers of the table."""
        return self.rows * self.chunks

    def _pieces(self, first: int, last: int, stride: int, rows: int, blocks: bool) -> Iterator[tuple[Layout, int]]:
        """(layout, bytes from the first column) of chunks [first, last) of rows that lie ``stride`` bytes apart."""
        size, whole = self.chunk * self.itemsize // self.word, self.columns // self.chunk
        axes = f"B={rows}:{stride // self.word} N=1" if blocks else f"B=1 N={rows}:{stride // self.word}"
        if first < min(last, whole):
            yield _layout(f"L=1 {axes} H={min(last, whole) - first}@{first} D={size} {self.dtype}"), 0
        if last > whole:
            rest = (self.columns - whole * self.chunk) * self.itemsize // self.word
            yield _layout(f"L=1 {axes} H=1@{whole} D={rest} {self.dtype}"), (whole - first) * size * self.word

    def bands(self, most: int) -> Iterator[Band]:
        """The shard in bands of about ``most`` bytes: whole rows, or where a row is longer, whole chunks of one."""
        row_bytes, size = self.columns * self.itemsize, self.chunk * self.itemsize
        rows = min(_MOST, max(1, most // max(1, row_bytes)))
        step = self.chunks if row_bytes <= most else max(1, most // size)
        for row in range(0, self.rows, rows):
            for chunk in range(0, self.chunks, step):
                last, count = min(chunk + step, self.chunks), min(rows, self.rows - row)
                at = row * row_bytes + chunk * size
                end = (row + count) * row_bytes if last == self.chunks else at + (last - chunk) * size
                yield Band(row, count, chunk, last, at, end - at)

    def table(self, data: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """The numbers of a shard, which is ``data``: shape (chunks, rows)."""
        return self.table_of(Band(0, self.rows, 0, self.chunks, 0, data.nbytes), data)

    def table_of(self, band: Band, data: Contents) -> NDArray[np.uint64]:
        """The numbers of a band, which is ``data``: shape (chunks, rows)."""
        found = np.zeros((band.last - band.first, band.rows), np.uint64)
        if found.size == 0:
            return found
        at = 0
        for described, offset in self._pieces(band.first, band.last, self.columns * self.itemsize, band.rows, True):
            numbers = layout.digests(described, data[offset:], np.arange(band.rows), band.rows, position=band.row)[0]
            found[at : at + len(numbers)] = numbers
            at += len(numbers)
        return found

    def digest(self, data: Contents, stride: int, first_row: int, rows: int, first: int, last: int) -> int:
        """The digest of chunks [first, last) of some rows, which begin at ``data`` and lie ``stride`` bytes apart."""
        total = 0
        for start in range(0, rows, _MOST):
            count = min(_MOST, rows - start)
            for described, offset in self._pieces(first, last, stride, count, False):
                total += layout.digest(described, data[start * stride + offset :], [0], count, position=first_row + start)
        return total & _MASK

    def copied(self, source: Strided, target: Strided, first_row: int, rows: int, first: int, last: int, digest: bool) -> int:
        """Copies chunks [first, last) of some rows. Returns the digest of the copy, taken in the same pass, or 0. CPU memory."""
        total = 0
        for start in range(0, rows, _MOST):
            count = min(_MOST, rows - start)
            pieces = zip(*(self._pieces(first, last, side.stride, count, False) for side in (source, target)), strict=True)
            for (read, offset), (written, _) in pieces:
                from_, to = (side.data[start * side.stride + offset :] for side in (source, target))
                total += layout.convert(
                    read, from_, [0], written, to, [0], count, position=first_row + start, digest="source" if digest else None
                )
        return total & _MASK

    def chunks_of(self, column: int, columns: int) -> tuple[int, int]:
        """The first of the chunks that have some columns, and the one behind the last."""
        return column // self.chunk, -(-(column + columns) // self.chunk)
