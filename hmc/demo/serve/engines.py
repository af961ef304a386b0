"""The engines of the serving demo: each with a cache, a layout and a pool of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import hmc
from hmc import kv
from hmc.demo.serve.model import DIM, HEADS, LAYERS, Cache
from hmc.layout import Layout

__all__ = ["DECODE", "OTHER", "PREFILL", "Pages", "prefill_layout"]

BLOCKS = 48
#: Of one of two tensor-parallel ranks: half of the heads, blocks of 16, a token's keys and values side by side.
PREFILL = "L={layers} B={blocks} H=2@{first} N=16 (kv D={dim}) bf16"
#: An array for each layer, all heads, blocks of 32, keys and values apart, dimensions before tokens, another element type.
DECODE = f"L={LAYERS} | B={BLOCKS} kv H={HEADS} D={DIM} N=32 f32"
#: A prefill engine of another make: all heads, tokens before heads.
OTHER = f"L={LAYERS} B={BLOCKS} kv N=16 H={HEADS} D={DIM} bf16"


def prefill_layout(rank: int) -> str:
    return PREFILL.format(layers=LAYERS, blocks=BLOCKS, first=2 * rank, dim=DIM)


class Pages:
    """A cache's arrays, as its engine and as HMC see them."""

    def __init__(self, ctx: hmc.Context, text: str) -> None:
        self.layout = Layout(text)
        self.arrays, views = _arrays(text)
        self.cache = Cache(views)
        self.pool = kv.Pool(ctx, self.arrays, self.layout)


def _arrays(text: str) -> tuple[list[Any], Sequence[Any]]:
    """The arrays of a layout, and a view of each layer with axes (block, token, kv, head, dimension)."""
    if text == DECODE:
        arrays: list[Any] = [np.zeros((BLOCKS, 2, HEADS, DIM, 32), np.float32) for _ in range(LAYERS)]
        return arrays, [array.transpose(0, 4, 1, 2, 3) for array in arrays]
    if text == OTHER:
        whole = np.zeros((LAYERS, BLOCKS, 2, 16, HEADS, DIM), np.uint16)
        return [whole], [layer.transpose(0, 2, 1, 3, 4) for layer in whole]
    whole = np.zeros((LAYERS, BLOCKS, 2, 16, 2, DIM), np.uint16)
    return [whole], [layer.transpose(0, 2, 3, 1, 4) for layer in whole]
