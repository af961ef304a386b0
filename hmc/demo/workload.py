"""What the demo moves: shapes of Llama 3 8B, made from seeds so that a receiver can compute what it must have got."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "HIDDEN_BYTES",
    "LAYERS",
    "PAGE_BYTES",
    "PAGE_TOKENS",
    "Bytes",
    "Shape",
    "checksum",
    "expert_counts",
    "page_table",
    "random_bytes",
]

Bytes = NDArray[np.uint8]

LAYERS = 32
PAGE_TOKENS = 16
# K and V of one layer: 16 tokens x 8 heads x 128 values x 2 bytes, twice.
PAGE_BYTES = 2 * PAGE_TOKENS * 8 * 128 * 2
HIDDEN_BYTES = 4096 * 2  # one token's activation in bf16


@dataclass(frozen=True)
class Shape:
    """Sizes of one run. ``tokens``: prompt length per prefill card."""

    tokens: int

    @property
    def pages(self) -> int:
        return max(1, self.tokens // PAGE_TOKENS)

    @property
    def cache_bytes(self) -> int:
        """KV cache of one prompt."""
        return LAYERS * self.pages * PAGE_BYTES

    @property
    def pool_pages(self) -> int:
        """Pages in a card's pool: room for two prompts, so that page tables scatter."""
        return 2 * self.pages

    @property
    def activation_bytes(self) -> int:
        return max(1, self.tokens // 4) * HIDDEN_BYTES


def random_bytes(size: int, *seed: int) -> Bytes:
    """``size`` bytes that depend on every number of ``seed`` (SFC64: fast, and independent of HMC)."""
    words: NDArray[Any] = np.random.Generator(np.random.SFC64(list(seed))).integers(0, 2**64, size // 8 + 1, dtype=np.uint64)
    return words.view(np.uint8)[:size]


def page_table(shape: Shape, *seed: int) -> NDArray[np.int64]:
    """Byte offsets of the prompt's pages in a pool of one layer: scattered, no page twice."""
    order = np.random.default_rng(list(seed)).permutation(shape.pool_pages)[: shape.pages]
    return order.astype(np.int64) * PAGE_BYTES


def expert_counts(tokens: int, ranks: int, source: int) -> list[int]:
    """Tokens that ``source`` routes to each rank's experts: skewed, and different for every source; some pairs get none."""
    weights = np.random.default_rng([7, source]).exponential(size=ranks)
    if ranks > 2:
        weights[(source * 3 + 1) % ranks] = 0.0
    counts = np.floor(weights / weights.sum() * tokens).astype(np.int64)
    counts[int(np.argmax(weights))] += tokens - int(counts.sum())
    return [int(count) for count in counts]


def checksum(data: Bytes, start: int = 0) -> int:
    """CRC-32 (zlib) of every byte, continuing from ``start``."""
    return zlib.crc32(np.ascontiguousarray(data).data, start)
