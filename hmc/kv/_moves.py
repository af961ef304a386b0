"""Moves between a local and a remote cache: runs where the elements stay as they are, else chunks that are converted on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmc import layout as layouts
from hmc._core import ConnBuffer, PageMove, Peer, RemoteBuffer
from hmc.errors import InvalidArgumentError, UnsupportedError
from hmc.layout import Layout

__all__ = [
    "CHUNK",
    "DEVICE_CHUNK",
    "DEVICE_LOADED",
    "LOADED",
    "SHORT",
    "Chunk",
    "InFlight",
    "Piece",
    "Side",
    "check_tokens",
    "chunks",
    "common",
    "conversions",
    "groups",
    "named",
    "pieces",
    "side",
]

CHUNK = 4 << 20  # bytes of a chunk that the CPU converts or digests
DEVICE_CHUNK = 64 << 20  # likewise of a device; a kernel's launch and the wait for it take as long as some megabytes
LOADED = 64 << 20  # likewise of what is read where it lies: threads share it, and between two it looks for a cancel
DEVICE_LOADED = 1 << 30  # likewise of a device: some milliseconds
SHORT = 512  # bytes; shorter runs are fetched in longer ones and permuted here
_PROBED = 32  # tokens, which show how long runs are
_GROUP = 64 << 20  # bytes of layers that travel together
_FIRST_GROUP = 16 << 20  # likewise of the first ones


class Side(NamedTuple):
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

    def move(self, peer: Peer, buffer: ConnBuffer, far: Sequence[RemoteBuffer], *, reading: bool) -> PageMove:
        """From the remote cache to packed memory in ``buffer`` (``reading``), or from there to the remote cache."""
        here = Side(self.packed, self.packed_blocks, self.far.first)
        source, target = (self.far, here) if reading else (here, self.far)
        return PageMove(peer, source, target, self.tokens, [buffer], far, reading=reading)


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


def named(layers: tuple[int, int]) -> str:
    """A range of layers in words."""
    first, count = layers
    return f"layer {first}" if count == 1 else f"layers {first} to {first + count - 1}"


def groups(layer_bytes: int, layers: tuple[int, int], checked: int = 0) -> Iterator[tuple[int, int]]:
    """The layers in groups: where they are checked of about so many bytes, so that one is checked while the next one travels.

    The first ones are shorter, so that pages travel while the others are planned.
    """
    layer, end = layers[0], sum(layers)
    most = max(1, (checked or _GROUP) // layer_bytes)
    step = max(1, min(most, _FIRST_GROUP // layer_bytes))
    while layer < end:
        yield layer, min(step, end - layer)
        layer, step = layer + step, min(most, 2 * step)


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


def conversions(near: Side, far: Side, tokens: int, layers: tuple[int, int]) -> Iterator[tuple[tuple[int, int], bool]]:
    """The layers in ranges, and whether their elements are converted on the way: another type, scale or order, or short runs.

    InvalidArgumentError, before anything is yielded, for a move that cannot be, such as one into a block that is listed twice.
    """
    scaled = any(" scale=" in str(one.layout) for one in (near, far))
    probed = range(layers[0], sum(layers) if scaled else layers[0] + 1)
    found = [(layer, _converted(near, far, tokens, layer)) for layer in probed]
    for converted, some in groupby(found, key=itemgetter(1)):
        numbers = [layer for layer, _ in some]
        yield (numbers[0], len(numbers) if scaled else layers[1]), converted


def _converted(near: Side, far: Side, tokens: int, layer: int) -> bool:
    first: dict[str, Any] = {"source_first": far.first, "target_first": near.first}
    try:
        found = layouts.runs(far.layout, far.blocks, near.layout, near.blocks, min(tokens, _PROBED), layers=(layer, 1), **first)
    except UnsupportedError:
        return True
    count = sum(len(one.source_offsets) for one in found)
    return SHORT <= sum(one.nbytes * len(one.source_offsets) for one in found) < SHORT * count


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
