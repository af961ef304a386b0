"""The digests that a plan compares: those of its cells alone, whatever the size of the source's table."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from hmc._core import ConnBuffer
from hmc._scratch import Scratch
from hmc.weights._cells import Cell, Group, groups_of, widened
from hmc.weights._limits import Limits
from hmc.weights._remote import Source, release

__all__ = ["Digests", "Excerpt"]


class _Patch(NamedTuple):
    """Chunks [chunk, chunk + chunks) of some rows of a shard."""

    row: int
    rows: int
    chunk: int
    chunks: int
    at: int  # of its first digest in the excerpt


class _Block(NamedTuple):
    """Digests that lie one behind the other, in the source's table and in the excerpt."""

    there: int
    here: int
    length: int


class Excerpt:
    """Which digests of source ``number`` some cells are compared with, and where they lie one behind the other. Immutable."""

    def __init__(self, source: Source, number: int, cells: Iterable[Cell]) -> None:
        self._source = source
        self._patches: dict[int, list[_Patch]] = {}  # by id of the cell
        blocks: list[_Block] = []
        at = 0
        for cell in cells:
            if number in cell.shards:
                patches = self._patches[id(cell)] = _patches(cell, number, at)
                for patch in patches:
                    _add_blocks(blocks, patch, cell.shards[number].table, cell.shards[number].grid.rows)
                at = patches[-1].at + patches[-1].rows * patches[-1].chunks
        self.nbytes = 8 * at
        self._blocks: list[tuple[int, Any, Any]] = []  # bytes of each, offsets in the table, offsets in the excerpt
        by_length: dict[int, list[_Block]] = {}
        for block in blocks:
            by_length.setdefault(block.length, []).append(block)
        for length, equal in by_length.items():
            there, here = (np.array([block[side] for block in equal], np.int64) * 8 for side in (0, 1))
            self._blocks.append((8 * length, there, here))

    def read(self, buffer: ConnBuffer, limits: Limits) -> Any:
        """The digests, read into ``buffer``, which has ``nbytes`` or more."""
        works = [self._source.read_table(buffer, here, there, nbytes) for nbytes, there, here in self._blocks]
        for work in works:
            limits.finish(work)
        return buffer.numpy()[: self.nbytes].view(np.uint64)

    def expected(self, digests: Any, cell: Cell, group: Group, chunks: tuple[int, int]) -> int:
        """The digest of chunks [first, last) of some rows of a cell."""
        patches = self._patches[id(cell)]
        patch = patches[bisect_right(patches, group.first, key=lambda one: one.row) - 1]
        table = digests[patch.at : patch.at + patch.chunks * patch.rows].reshape(patch.chunks, patch.rows)
        first, row = chunks[0] - patch.chunk, group.first - patch.row
        return int(table[first : first + chunks[1] - chunks[0], row : row + group.rows].sum(dtype=np.uint64))


def _patches(cell: Cell, number: int, at: int) -> list[_Patch]:
    shard = cell.shards[number]
    box = widened(cell.box.within(shard.at), shard)
    chunk, last = shard.grid.chunks_of(box.at[-1], box.extents[-1])
    found = []
    for group in groups_of(box, shard.extents, (0,) * len(box.at), box.extents):
        found.append(_Patch(group.first, group.rows, chunk, last - chunk, at))
        at += group.rows * (last - chunk)
    return found


def _add_blocks(blocks: list[_Block], patch: _Patch, table: int, rows: int) -> None:
    """Adds where a patch lies in a table that has the digests of ``rows`` rows for each chunk from entry ``table`` on."""
    whole = patch.rows == rows  # then its chunks lie one behind the other
    for chunk in range(1 if whole else patch.chunks):
        there, length = table + (patch.chunk + chunk) * rows + patch.row, patch.rows * (patch.chunks if whole else 1)
        if blocks and blocks[-1].there + blocks[-1].length == there:  # in the excerpt every block begins where the last one ends
            blocks[-1] = blocks[-1]._replace(length=blocks[-1].length + length)
        else:
            blocks.append(_Block(there, patch.at + chunk * patch.rows, length))


class Digests:
    """The digests of an excerpt, which the first of its source's workers reads. Any thread."""

    def __init__(self, excerpt: Excerpt, memory: Scratch) -> None:
        self._excerpt = excerpt
        self._memory = memory
        self._lock = threading.Lock()
        self._buffer: ConnBuffer | None = None
        self._found: Any = None

    def read(self, limits: Limits) -> None:
        """Returns when they are here. Raises why they cannot be read, and what ends the pull."""
        with self._lock:
            if self._buffer is None:
                buffer = self._memory.take(self._excerpt.nbytes)
                try:
                    self._found = self._excerpt.read(buffer, limits)
                except BaseException:
                    release(buffer)
                    raise
                self._buffer = buffer

    def expected(self, cell: Cell, group: Group, chunks: tuple[int, int]) -> int:
        """As Excerpt.expected()."""
        return self._excerpt.expected(self._found, cell, group, chunks)

    def end(self) -> None:
        """No worker uses them any more."""
        if self._buffer is not None:
            self._found = None
            self._memory.give(self._buffer)
