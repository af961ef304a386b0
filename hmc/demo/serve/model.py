"""A small decoder of transformer layers in NumPy, over a paged KV cache of any layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIM", "HEADS", "LAYERS", "PARTS", "VOCABULARY", "Cache", "Engine", "prompt_of"]

LAYERS, HEADS, DIM, VOCABULARY = 4, 4, 32, 512
WIDTH = HEADS * DIM
#: Heads of each tensor-parallel rank. An engine with all heads adds up the same parts in the same order.
PARTS = ((0, 2), (2, 2))

Floats = NDArray[np.float32]


def prompt_of(number: int, tokens: int) -> list[int]:
    """The prompt of a session."""
    return [int(token) for token in np.random.default_rng([7, number]).integers(0, VOCABULARY, tokens)]


class Cache:
    """Pages of keys and values. Values are rounded to bfloat16 whatever the elements, so every engine has the same.

    ``views``: one array per layer with axes (block, token of the block, kv, head, dimension), of float32, or of uint16 that hold
    bfloat16.
    """

    def __init__(self, views: Sequence[NDArray[Any]]) -> None:
        self._views = views
        self.block = views[0].shape[1]

    def write(self, layer: int, blocks: Sequence[int], first: int, values: Floats) -> None:
        """``values``: (tokens, kv, heads, dimensions), of tokens ``first`` and following."""
        bits = _bfloat16(values)
        view = self._views[layer]
        for at, token in enumerate(range(first, first + len(values))):
            place = view[blocks[token // self.block], token % self.block]
            place[:] = bits[at] if view.dtype == np.uint16 else _wide(bits[at])

    def read(self, layer: int, blocks: Sequence[int], tokens: int) -> NDArray[Any]:
        """The first ``tokens`` tokens: (tokens, kv, heads, dimensions)."""
        view = self._views[layer]
        pages = view[list(blocks[: -(-tokens // self.block)])]
        found = pages.reshape(-1, *view.shape[2:])[:tokens]
        return _wide(found) if view.dtype == np.uint16 else found


class Engine:
    """The model with some of its heads. Its weights are the same in every process.

    ``parts``: (first, count) of the heads that are added up one after the other. ``add``: adds what the other tensor-parallel ranks
    have to an array, in place.
    """

    def __init__(self, cache: Cache, parts: Sequence[tuple[int, int]] = PARTS, add: Callable[[Floats], None] | None = None) -> None:
        random = np.random.default_rng(5)

        def weights(*shape: int) -> Floats:
            return np.asarray(random.standard_normal(shape) / np.sqrt(shape[-2]), np.float32)

        self._embedding = random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
        # Large enough that the tokens depend on what is far back in the cache.
        self._attention = 2 * weights(LAYERS, 3, WIDTH, WIDTH)
        self._outputs = 4 * weights(LAYERS, WIDTH, WIDTH)
        self._head = weights(WIDTH, VOCABULARY)
        self._up, self._down = weights(LAYERS, WIDTH, 4 * WIDTH), weights(LAYERS, 4 * WIDTH, WIDTH)
        self._cache = cache
        self._parts = parts
        self._add = add

    def forward(
        self, tokens: Sequence[int], first: int, blocks: Sequence[int], on_layer: Callable[[int], None] = lambda _layer: None
    ) -> int:
        """The token that follows ``tokens``, of which the first has position ``first``. Writes their keys and values.

        ``on_layer`` is called after each layer that is written.
        """
        x = self._embedding[list(tokens)] + _positions(first, len(tokens))
        for layer in range(LAYERS):
            x = x + self._attend(layer, _normal(x), first, blocks)
            on_layer(layer)
            x = x + np.maximum(_normal(x) @ self._up[layer], 0) @ self._down[layer]
        return int(np.argmax(_normal(x[-1:]) @ self._head))

    def decode(self, token: int, position: int, blocks: Sequence[int], count: int) -> list[int]:
        """``count`` tokens, of which the first is ``token`` at ``position``."""
        found = [token]
        while len(found) < count:
            found.append(self.forward(found[-1:], position + len(found) - 1, blocks))
        return found

    def _attend(self, layer: int, x: Floats, first: int, blocks: Sequence[int]) -> Floats:
        # Part by part, so that a rank with one part multiplies matrices of the same shapes: the same bits.
        parts = [x @ self._attention[layer, :, :, start * DIM : (start + count) * DIM] for start, count in self._parts]
        pairs = np.concatenate([part[1:].reshape(2, len(x), -1, DIM) for part in parts], 2)
        self._cache.write(layer, blocks, first, pairs.transpose(1, 0, 2, 3))
        known = self._cache.read(layer, blocks, first + len(x))
        later = np.arange(len(known))[None] > first + np.arange(len(x))[:, None]
        total = np.zeros((len(x), WIDTH), np.float32)
        for part, (start, count) in zip(parts, self._parts, strict=True):
            mixed = []
            for head in range(count):
                mine = start - self._parts[0][0] + head
                scores = part[0, :, head * DIM : (head + 1) * DIM] @ known[:, 0, mine].T / np.sqrt(np.float32(DIM))
                scores[later] = -np.inf
                mixed.append(_softmax(scores) @ known[:, 1, mine])
            total += np.concatenate(mixed, 1) @ self._outputs[layer, start * DIM : (start + count) * DIM]
        if self._add is not None:
            self._add(total)
        return total


def _bfloat16(values: Floats) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _wide(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _positions(first: int, count: int) -> Floats:
    angles = np.arange(first, first + count)[:, None] / 100.0 ** (np.arange(WIDTH) / WIDTH)
    return np.sin(angles + np.arange(WIDTH) % 2 * np.pi / 2).astype(np.float32)


def _normal(x: Floats) -> Floats:
    return np.asarray(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(1e-6)))


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))
