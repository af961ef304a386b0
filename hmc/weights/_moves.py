"""One cell from one source: read into the shadow, or read into a stage, checked, then copied or cast into the shadow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import tensors
from hmc._core import BufferHold, ConnBuffer, Work
from hmc.errors import CorruptError
from hmc.weights._cells import Box, Cell, groups_of, pieces_of, widened
from hmc.weights._compute import cast, contents_of, digest_of
from hmc.weights._digest import Strided
from hmc.weights._excerpt import Digests
from hmc.weights._manifest import Shard
from hmc.weights._parts import WORDS, Part
from hmc.weights._remote import Source

__all__ = ["Move", "Place"]

_ALIGNMENT = 64  # bytes, of moves in a stage


@dataclass(frozen=True)
class Place:
    """A part of the target, and where it lies in the shadow."""

    name: str
    part: Part
    offset: int
    at: tuple[int, ...]
    extents: tuple[int, ...]

    def view(self, shadow: ConnBuffer) -> tensors.Tensor:
        return tensors.view(shadow, self.part.dtype, self.extents, offset=self.offset)

    def words(self, shadow: ConnBuffer) -> NDArray[Any]:
        """Its elements in a shadow of the CPU."""
        word = np.dtype(WORDS[self.part.itemsize])
        found: NDArray[Any] = shadow[self.offset : self.offset + self.part.nbytes].numpy(word, self.extents)
        return found

    def elements(self, shadow: ConnBuffer) -> Any:
        """As words(); in a shadow of a device, the memory that they lie in."""
        if shadow.device == "cpu":
            return self.words(shadow)
        return shadow.memory[self.offset : self.offset + self.part.nbytes]


class Move:
    """How one cell comes from one source. Made once, used by every pull."""

    def __init__(
        self,
        cell: Cell,
        place: Place,
        source: Source,
        shard: Shard,
        shadow: ConnBuffer,
        verify: bool,
        digested: Cell | None = None,
    ) -> None:
        """``digested``: the cell that ``cell`` is a piece of, whose digests are read; None: ``cell`` itself."""
        self.cell = cell
        self.digested = digested or cell
        self.place = place
        self.source = source
        self.shard = shard
        self.verify = verify
        self.target = cell.box.within(place.at)
        self.box = cell.box.within(shard.at)
        chunks = widened(self.box, shard)
        self.wide = chunks if verify else self.box
        self.casts = shard.dtype != place.part.dtype
        # digests are of whole words: rows of the target may lie an odd number of bytes apart
        aligned = place.extents[-1] * shard.grid.itemsize % shard.grid.word == 0
        self.direct = not self.casts and self.wide == self.box and (aligned or not verify)
        self._loads = self.direct and aligned and chunks == self.box and shadow.device == "cpu"  # where the source can be read
        remote = tensors.view(source.buffers[shard.buffer], shard.dtype, shard.extents)[self.wide.slices()]
        if self.direct:
            pairs, block = tensors.pairs(place.view(shadow)[self.target.slices()], remote)
            self._prepared = _prepared(source, pairs, block)
        else:
            self._blocks = remote.blocks()
        self.shadow = shadow
        self._loaded: list[int] = []  # the digests of the groups, where post() has read them

    @property
    def staged_bytes(self) -> int:
        """Bytes that it takes of a stage, the gap to the next move included."""
        return 0 if self.direct else -(-self.wide.size * self.shard.grid.itemsize // _ALIGNMENT) * _ALIGNMENT

    def fitted(self, nbytes: int) -> list[Move]:
        """This move, or where it takes more than ``nbytes`` of a stage, moves of pieces of its cell that take less."""
        if self.staged_bytes <= nbytes:
            return [self]
        pieces = pieces_of(self.cell.box, self.shard.grid.itemsize, [self.shard], nbytes)
        made = [Cell(self.cell.part, piece, 0, self.cell.shards) for piece in pieces]
        return [Move(one, self.place, self.source, self.shard, self.shadow, self.verify, self.digested) for one in made]

    def post(self, stage: ConnBuffer | None, at: int) -> Work | None:
        """Begins to read, into the shadow or to byte ``at`` of the stage. None: it has read."""
        self._loaded = []
        if self._loads:
            remote = self.source.buffers[self.shard.buffer]
            there = remote.loadable()
            if isinstance(there, np.ndarray):
                with BufferHold([self.shadow], [remote]):
                    self._load(there)
                return None
        if self.direct:
            return _posted(self.source, self._prepared)
        assert stage is not None
        block, offsets = self._blocks
        local = at + np.arange(len(offsets), dtype=np.int64) * block
        return _posted(
            self.source, _prepared(self.source, [(stage, local, self.source.buffers[self.shard.buffer], offsets)], block)
        )

    def _load(self, there: NDArray[np.uint8]) -> None:
        """Copies from where the elements lie in the source's memory; digests the copy, where asked, in the same pass."""
        grid, box, whole = self.shard.grid, self.box, self.shard.extents
        here, columns = self.shadow.numpy()[self.place.offset :], self.place.extents[-1]
        for group in groups_of(box, whole, self.target.at, self.place.extents):
            source = Strided(there[(group.first * whole[-1] + box.at[-1]) * grid.itemsize :], whole[-1] * grid.itemsize)
            target = Strided(here[(group.other * columns + self.target.at[-1]) * grid.itemsize :], columns * grid.itemsize)
            chunks = grid.chunks_of(box.at[-1], box.extents[-1])
            self._loaded.append(grid.copied(source, target, group.first, group.rows, *chunks, self.verify))

    def check(self, digests: Digests, stage: ConnBuffer | None, at: int) -> None:
        """Compares what arrived with the source's digests. CorruptError where they differ."""
        grid, box = self.shard.grid, self.wide
        chunks = grid.chunks_of(box.at[-1], box.extents[-1])
        if self.direct:
            data, base, where = contents_of(self.shadow), self.place.offset, self.target
            columns, extents = self.place.extents[-1], self.place.extents
        else:
            assert stage is not None
            data, base, where = contents_of(stage), at, Box((0,) * len(box.at), box.extents)
            columns, extents = box.extents[-1], box.extents
        loaded, self._loaded = self._loaded, []
        for number, group in enumerate(groups_of(box, self.shard.extents, where.at, extents)):
            start = base + (group.other * columns + where.at[-1]) * grid.itemsize
            found = (
                loaded[number]
                if loaded
                else digest_of(grid, data[start:], columns * grid.itemsize, group.first, group.rows, *chunks)
            )
            wanted = digests.expected(self.digested, group, chunks)
            if found != wanted:
                raise CorruptError(
                    f"tensor {self.place.name} from peer {self.source.peer.name}: the digest of rows {group.first} to "
                    f"{group.first + group.rows - 1} of its shard is {found:#018x}, the published one {wanted:#018x}. The target "
                    "is unchanged; change arrays only inside update()"
                )

    def place_staged(self, stage: ConnBuffer, at: int) -> None:
        """Copies or casts what arrived from the stage to the shadow."""
        skip = self.box.at[-1] - self.wide.at[-1]
        if not self.casts and self.shadow.device != "cpu":
            whole = tensors.view(stage, self.shard.dtype, self.wide.extents, offset=at)
            [(_, there, _, here)], block = tensors.pairs(
                self.place.view(self.shadow)[self.target.slices()], whole[..., skip : skip + self.box.extents[-1]]
            )
            self.shadow.memory.copy_blocks_from(stage.memory, here, there, block)
            return
        if not self.casts:
            word = np.dtype(WORDS[self.shard.grid.itemsize])
            arrived = stage[at : at + self.wide.size * word.itemsize].numpy(word, self.wide.extents)
            self.place.words(self.shadow)[self.target.slices()] = arrived[..., skip : skip + self.box.extents[-1]]
            return
        source, target = contents_of(stage)[at:], contents_of(self.shadow)[self.place.offset :]
        size, wide, columns = self.place.part.itemsize, self.wide.extents, self.place.extents[-1]
        inner = Box((*(0,) * (len(wide) - 1), skip), self.box.extents)
        for group in groups_of(inner, wide, self.target.at, self.place.extents):
            read = source[(group.first * wide[-1] + skip) * self.shard.grid.itemsize :]
            written = target[(group.other * columns + self.target.at[-1]) * size :]
            kinds = self.shard.dtype, self.place.part.dtype
            cast(kinds, read, wide[-1], written, columns, group.rows, self.box.extents[-1])


def _prepared(source: Source, pairs: Sequence[tuple[Any, Any, Any, Any]], block: int) -> Any:
    [(local, here, remote, there)] = pairs
    if len(here) == 1:
        return local[int(here[0]) : int(here[0]) + block], remote[int(there[0]) : int(there[0]) + block]
    return source.peer.prepare_blocks(pairs, block)


def _posted(source: Source, prepared: Any) -> Work:
    return source.peer.get(*prepared) if isinstance(prepared, tuple) else source.peer.get_blocks(prepared)
