"""Stores: layers of a push that are converted into a peer's arrays where they lie, without an operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hmc.kv._cache import Cache
from hmc.kv._moves import LOADED, Side, chunks, common, conversions
from hmc.kv._remote import RemotePool

__all__ = ["Store", "Stored"]


class Stored(NamedTuple):
    """What was written of a layer."""

    digest: int  # of the elements as they were written; 0 without one
    nbytes: int
    converted_bytes: int  # of the peer's blocks that it lies in, where its elements were converted


class Store:
    """Converts layers of a cache in CPU memory into a peer's arrays that the CPU can write. Not for several threads."""

    def __init__(self, cache: Cache, remote: RemotePool, source: Side, target: Side, tokens: int, digests: bool) -> None:
        self._cache = cache
        self._remote = remote
        self._source = source
        self._target = target
        self._tokens = tokens
        self._digests = digests
        self._there: list[Any] | None = None
        self._converts: dict[int, bool] = {}

    def possible(self) -> bool:
        """Whether the CPU can write the peer's arrays. Raises InvalidArgumentError, before a byte is written, for a wrong move."""
        if self._there is None and self._cache.on_cpu:
            self._there = self._remote.storable("cpu")
        if self._there is not None and not self._converts:
            both = common(self._source.layout.layers, self._target.layout.layers)
            for (first, count), found in conversions(self._target, self._source, self._tokens, both):
                self._converts.update(dict.fromkeys(range(first, first + count), found))
        return self._there is not None

    def write(self, layers: tuple[int, int], look: Callable[[], None]) -> Stored:
        """Writes layers, where possible(). Calls ``look`` before each chunk. Writes nothing after it has returned or raised."""
        assert self._there is not None
        digest = nbytes = converted = 0
        for chunk in chunks(self._source, self._target, self._tokens, layers, LOADED):
            look()
            digest += self._cache.store(chunk, self._there, self._remote.buffers, self._digests)
            packed = chunk.packed.buffer_bytes
            nbytes += packed // len(chunk.far.blocks) * chunk.tokens // chunk.far.layout.block
            converted += packed * self._converted(chunk.packed.layers) // chunk.packed.layers[1]
        return Stored(digest & (1 << 64) - 1, nbytes, converted)

    def _converted(self, layers: tuple[int, int]) -> int:
        """Of how many of these layers the elements are converted."""
        return sum(self._converts[layer] for layer in range(layers[0], sum(layers)))
