"""Cuts what a target requires at the edges of the sources' shards, and into tasks of bounded size. Pure arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hmc.errors import InvalidArgumentError
from hmc.weights._manifest import Shard

__all__ = [
    "DEVICE_TASK_BYTES",
    "TASK_BYTES",
    "Box",
    "Cell",
    "Group",
    "Task",
    "cells_of",
    "groups_of",
    "pieces_of",
    "tasks_of",
    "widened",
]

TASK_BYTES = 16 << 20
DEVICE_TASK_BYTES = 64 << 20  # between devices, which copy several times as fast
_TASK_CELLS = 64
_MOST_CHECKS = 1 << 24  # boxes of one part x shards


@dataclass(frozen=True)
class Box:
    """``extents`` elements from index ``at`` on, per axis."""

    at: tuple[int, ...]
    extents: tuple[int, ...]

    def within(self, origin: Sequence[int]) -> Box:
        """The same box, its indices counted from ``origin``."""
        return Box(tuple(a - o for a, o in zip(self.at, origin, strict=True)), self.extents)

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, a + e) for a, e in zip(self.at, self.extents, strict=True))

    @property
    def size(self) -> int:
        return math.prod(self.extents)


@dataclass(frozen=True)
class Cell:
    """A box of one target part, in indices of the whole tensor, that lies within one shard of each of some sources."""

    part: int
    box: Box
    nbytes: int  # to be read from a source at most
    shards: Mapping[int, Shard]  # by number of the source


@dataclass(frozen=True)
class Task:
    """Cells that are read together, from any one of ``sources``."""

    cells: list[Cell]
    sources: frozenset[int]


@dataclass(frozen=True)
class Group:
    """Rows of a box that lie at equal distances in both of two C-ordered arrays. Rows are counted from each array's start."""

    rows: int
    first: int
    other: int


def widened(box: Box, shard: Shard) -> Box:
    """The box within the shard (indices of the shard), its columns extended to whole chunks of digests."""
    at, chunk = box.at[-1], shard.grid.chunk
    first = at // chunk * chunk
    last = min(shard.extents[-1], -(-(at + box.extents[-1]) // chunk) * chunk)
    return Box((*box.at[:-1], first), (*box.extents[:-1], last - first))


def groups_of(box: Box, extents: Sequence[int], other_at: Sequence[int], other_extents: Sequence[int]) -> Iterator[Group]:
    """The rows of ``box`` in an array of ``extents``, and of the equal box at ``other_at`` in another array."""
    at, size, whole = list(box.at[:-1]), list(box.extents[:-1]), list(extents[:-1])
    to, there = list(other_at[:-1]), list(other_extents[:-1])
    while len(size) > 1 and size[-1] == whole[-1] == there[-1]:  # the last two axes are as one
        inner = size.pop()
        for axes in (at, whole, to, there):
            axes.pop()
        size[-1], whole[-1], there[-1], at[-1], to[-1] = (n * inner for n in (size[-1], whole[-1], there[-1], at[-1], to[-1]))
    if not size:
        yield Group(1, 0, 0)
        return
    for outer in itertools.product(*map(range, size[:-1])):
        first = other = 0
        for axis, index in enumerate(outer):
            first = (first + at[axis] + index) * whole[axis + 1]
            other = (other + to[axis] + index) * there[axis + 1]
        yield Group(size[-1], first + at[-1], other + to[-1])


def _edges(box: Box, shards: Sequence[Shard], axis: int) -> list[int]:
    low, high = box.at[axis], box.at[axis] + box.extents[axis]
    inside = {edge for s in shards for edge in (s.at[axis], s.at[axis] + s.extents[axis]) if low < edge < high}
    return sorted({low, high} | inside)


def _holds(shard: Shard, box: Box) -> bool:
    ends = zip(shard.at, shard.extents, box.at, box.extents, strict=True)
    return all(a <= b and b + f <= a + e for a, e, b, f in ends)


def _meets(shard: Shard, box: Box) -> bool:
    ends = zip(shard.at, shard.extents, box.at, box.extents, strict=True)
    return all(a < b + f and b < a + e for a, e, b, f in ends)


def cells_of(name: str, part: int, box: Box, itemsize: int, shards: Sequence[tuple[int, Shard]], most: int) -> Iterator[Cell]:
    """Cells of one part of a target, each of about ``most`` bytes at most. ``shards``: with the number of their source.

    InvalidArgumentError for a region without a shard.
    """
    shards = [(source, shard) for source, shard in shards if _meets(shard, box)]
    edges = [_edges(box, [shard for _, shard in shards], axis) for axis in range(len(box.at))]
    if math.prod(len(axis) - 1 for axis in edges) * len(shards) > _MOST_CHECKS:
        raise InvalidArgumentError(
            f"tensor {name}: the edges of its {len(shards)} shards cut the target into {[len(axis) - 1 for axis in edges]} boxes "
            "per axis; pass sources with fewer shards"
        )
    for corner in itertools.product(*(list(itertools.pairwise(axis)) for axis in edges)):
        found = Box(tuple(low for low, _ in corner), tuple(high - low for low, high in corner))
        holders = {source: shard for source, shard in reversed(shards) if _holds(shard, found)}
        if not holders:
            where = ", ".join(f"{low}:{high}" for low, high in corner)
            raise InvalidArgumentError(f"tensor {name}: no source has [{where}]; look up the sources of every shard")
        for piece in pieces_of(found, itemsize, list(holders.values()), most):
            yield Cell(part, piece, _cost(piece, itemsize, list(holders.values())), holders)


def _cost(box: Box, itemsize: int, shards: Sequence[Shard]) -> int:
    """Bytes that are read of a box at most."""
    return math.prod(box.extents[:-1]) * max(widened(box.within(s.at), s).extents[-1] for s in shards) * itemsize


def pieces_of(box: Box, itemsize: int, shards: Sequence[Shard], most: int) -> Iterator[Box]:
    """Boxes of which so many bytes are read at most, cut at whole rows where that suffices, else at chunks of the first shard."""
    if _cost(box, itemsize, shards) <= most:
        yield box
        return
    axis = next((axis for axis, extent in enumerate(box.extents) if extent > 1), len(box.extents) - 1)
    last = axis == len(box.extents) - 1
    inner = itemsize if last else _cost(Box(box.at, (*box.extents[:axis], 1, *box.extents[axis + 1 :])), itemsize, shards)
    step = max(1, most // max(1, inner))
    chunk = shards[0].grid.chunk
    if last:
        step = max(chunk, step // chunk * chunk)
    low, high = box.at[axis], box.at[axis] + box.extents[axis]
    while low < high:
        end = low + step
        if last:  # cut where a chunk of the first shard begins
            end -= (end - shards[0].at[axis]) % chunk
        end = min(high, end)
        piece = Box((*box.at[:axis], low, *box.at[axis + 1 :]), (*box.extents[:axis], end - low, *box.extents[axis + 1 :]))
        yield from [piece] if last else pieces_of(piece, itemsize, shards, most)
        low = end


def tasks_of(cells: Sequence[Cell], most: int) -> list[Task]:
    """Cells that the same sources have, together up to ``most`` bytes."""
    tasks: list[Task] = []
    open_tasks: dict[frozenset[int], tuple[list[Cell], int]] = {}
    for cell in cells:
        key = frozenset(cell.shards)
        held, nbytes = open_tasks.get(key, ([], 0))
        if held and (nbytes + cell.nbytes > most or len(held) >= _TASK_CELLS):
            tasks.append(Task(held, key))
            held, nbytes = [], 0
        held.append(cell)
        open_tasks[key] = (held, nbytes + cell.nbytes)
    tasks += [Task(held, key) for key, (held, _) in open_tasks.items() if held]
    return tasks
