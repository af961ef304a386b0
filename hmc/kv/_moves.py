"""Moves between a local and a remote cache: runs where the elements stay as they are, else chunks that are converted on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import layout as layouts
from hmc._core import BlockBatch, Peer
from hmc.errors import InvalidArgumentError, UnsupportedError
from hmc.layout import Layout, Runs

__all__ = [
    "CHUNK",
    "DEVICE_CHUNK",
    "Chunk",
    "Direct",
    "InFlight",
    "Piece",
    "Side",
    "batches",
    "check_tokens",
    "chunks",
    "common",
    "groups",
    "pieces",
    "side",
]

CHUNK = 4 << 20  # bytes of a chunk that the CPU converts or digests
DEVICE_CHUNK = 64 << 20  # likewise of a device; a kernel's launch and the wait for it take as long as some megabytes
_BATCH = 64 << 20  # bytes of a batch of runs
_SHORT = 512  # bytes; shorter runs are fetched in longer ones and permuted here
_PROBE = 32  # tokens


@dataclass(frozen=True)
class Side:
    """One side's tokens."""

    layout: Layout
    blocks: NDArray[np.unsignedinteger[Any]]
    first: int


@dataclass(frozen=True)
class Chunk:
    """Some tokens of some layers, and what of both sides' blocks they lie in."""

    token: int
    tokens: int
    packed: Layout  # how the chunk lies in between: as in the remote cache
    near: Side
    far: Side

    @property
    def packed_blocks(self) -> NDArray[np.uint64]:
        """The blocks of packed memory that it lies in: one for each of the remote cache's."""
        return np.arange(len(self.far.blocks), dtype=np.uint64)

    def runs(self, *, reading: bool) -> list[Runs]:
        """The runs from the remote cache to packed memory (``reading``), or from packed memory to the remote cache."""
        ends = (self.far.layout, self.far.blocks), (self.packed, self.packed_blocks)
        (source, of), (target, into) = ends if reading else ends[::-1]
        return layouts.runs(source, of, target, into, self.tokens, source_first=self.far.first, target_first=self.far.first)


@dataclass(frozen=True)
class Piece:
    """Some tokens of some layers of one cache, and the blocks that they lie in."""

    layers: tuple[int, int]
    token: int
    tokens: int
    side: Side


def check_tokens(layout: Layout, blocks: Sized, tokens: int, first: int) -> None:
    """InvalidArgumentError where ``tokens`` from token ``first`` on are not within so many blocks."""
    if first < 0 or tokens < 1 or first + tokens > len(blocks) * layout.block:
        raise InvalidArgumentError(f"{tokens} tokens from token {first} on do not fit into {len(blocks)} blocks of {layout.block}")


def side(layout: Layout, blocks: NDArray[np.uint64], tokens: int, first: int) -> Side:
    """So many tokens from token ``first`` of the blocks on, and the blocks that they lie in."""
    check_tokens(layout, blocks, tokens, first)
    size = layout.block
    return Side(layout, blocks[first // size : -(-(first + tokens) // size)], first % size)


def common(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """What two ranges (first, count) have in common."""
    first = max(a[0], b[0])
    return first, max(0, min(a[0] + a[1], b[0] + b[1]) - first)


class Direct:
    """Finds the runs of a move, layer by layer. Not thread-safe."""

    def __init__(self, source: Side, target: Side, tokens: int) -> None:
        self._source = source
        self._target = target
        self._tokens = tokens
        self._short: bool | None = None  # known from the first layer; the same for all

    def runs(self, layers: tuple[int, int]) -> list[Runs] | None:
        """The runs of some layers, or None where these are to be converted."""
        try:
            if self._short is None:
                self._short = self._probe(layers[0])
            return None if self._short else _runs(self._source, self._target, self._tokens, layers)
        except UnsupportedError:
            return None

    def _probe(self, layer: int) -> bool:
        """True where runs are short. A few tokens show it: a list of all short runs would take longer than the move."""
        found = _runs(self._source, self._target, min(self._tokens, _PROBE), (layer, 1))
        nbytes = sum(run.nbytes * len(run.source_offsets) for run in found)
        return _SHORT <= nbytes < _SHORT * sum(len(run.source_offsets) for run in found)


def _runs(source: Side, target: Side, tokens: int, layers: tuple[int, int]) -> list[Runs]:
    return layouts.runs(
        source.layout,
        source.blocks,
        target.layout,
        target.blocks,
        tokens,
        source_first=source.first,
        target_first=target.first,
        layers=layers,
    )


def groups(layout: Layout, tokens: int, layers: tuple[int, int], checked: int = 0) -> Iterator[tuple[int, int]]:
    """The layers in groups: where they are checked of about so many bytes, so that one is checked while the next one travels."""
    first, count = layers
    per_layer = layout.packed((first, 1), layout.heads, -(-tokens // layout.block)).buffer_bytes
    step = max(1, (checked or _BATCH) // per_layer)
    for layer in range(first, first + count, step):
        yield layer, min(step, first + count - layer)


def batches(
    peer: Peer, runs: list[Runs], near: Sequence[Any], far: Sequence[Any], *, reading: bool
) -> Iterator[tuple[BlockBatch, int]]:
    """Prepared batches of at most _BATCH bytes. ``near``: local buffers, ``far``: the peer's; reading: runs go from far to near."""
    for nbytes in sorted({run.nbytes for run in runs}, reverse=True):
        most = max(1, _BATCH // nbytes)
        pairs: list[Any] = []
        count = 0
        for run in (run for run in runs if run.nbytes == nbytes):
            source, target = (far, near) if reading else (near, far)
            for at in range(0, len(run.source_offsets), most):
                ends = (
                    (source[run.source_buffer], run.source_offsets[at : at + most]),
                    (target[run.target_buffer], run.target_offsets[at : at + most]),
                )
                mine, theirs = ends[::-1] if reading else ends
                pairs.append((*mine, *theirs))
                count += len(mine[1])
                if count >= most:
                    yield peer.prepare_blocks(pairs, nbytes), count * nbytes
                    pairs, count = [], 0
        if pairs:
            yield peer.prepare_blocks(pairs, nbytes), count * nbytes


def chunks(near: Side, far: Side, tokens: int, layers: tuple[int, int], nbytes: int) -> Iterator[Chunk]:
    """The move in pieces of about ``nbytes`` in the remote layout, which begin and end with blocks of it."""
    size = far.layout.block
    heads = common(near.layout.heads, far.layout.heads)
    one = far.layout.packed((layers[0], 1), heads, 1)
    blocks = min(max(1, nbytes // one.buffer_bytes), len(far.blocks))
    step = max(1, nbytes // (one.buffer_bytes * blocks))
    for layer in range(layers[0], layers[0] + layers[1], step):
        token = 0
        while token < tokens:
            at = far.first + token
            count = min(tokens - token, blocks * size - at % size)
            mine = near.first + token
            near_size = near.layout.block
            chunk_far = far.blocks[at // size : -(-(at + count) // size)]
            chunk_near = near.blocks[mine // near_size : -(-(mine + count) // near_size)]
            packed = far.layout.packed((layer, min(step, sum(layers) - layer)), heads, len(chunk_far))
            yield Chunk(
                token,
                count,
                packed,
                Side(near.layout, chunk_near, mine % near_size),
                Side(far.layout, chunk_far, at % size),
            )
            token += count


def pieces(side: Side, tokens: int, layers: tuple[int, int], heads: tuple[int, int]) -> Iterator[Piece]:
    """A cache's tokens in pieces of about CHUNK bytes, which begin and end with blocks of it."""
    size = side.layout.block
    block_bytes = side.layout.packed((layers[0], 1), heads, 1).buffer_bytes
    blocks = min(max(1, CHUNK // block_bytes), len(side.blocks))
    step = max(1, CHUNK // (block_bytes * blocks))
    for layer in range(layers[0], layers[0] + layers[1], step):
        token = 0
        while token < tokens:
            at = side.first + token
            count = min(tokens - token, blocks * size - at % size)
            within = side.blocks[at // size : -(-(at + count) // size)]
            yield Piece((layer, min(step, sum(layers) - layer)), token, count, Side(side.layout, within, at % size))
            token += count


class InFlight:
    """Operations in flight: ``add`` finishes the oldest of more than ``depth``. ``finish`` leaves nothing of an item in flight."""

    def __init__(self, depth: int, finish: Any) -> None:
        self._depth = depth
        self._finish = finish
        self._pending: deque[Any] = deque()

    def add(self, item: Any) -> None:
        self._pending.append(item)  # first: give_up() ends it where the oldest one fails
        if len(self._pending) > self._depth:
            self._finish(self._pending.popleft())

    def drain(self) -> None:
        while self._pending:
            self._finish(self._pending.popleft())

    def give_up(self, drop: Any) -> None:
        """After an error: ends what is in flight, whatever its outcome."""
        while self._pending:
            drop(self._pending.popleft())
