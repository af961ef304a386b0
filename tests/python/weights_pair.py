"""Two Contexts of one process, for the tests of hmc.weights."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

import hmc
from hmc import layout, weights
from hmc.layout import Layout

CASTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3fn", "float8_e5m2": "f8_e5m2"}
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class Pair:
    """A publishing and a receiving Context."""

    def __init__(self, end: contextlib.ExitStack) -> None:
        self.end = end
        self.source_ctx = end.enter_context(hmc.Context())
        self.ctx = end.enter_context(hmc.Context())
        self.peer = self.ctx.connect(self.source_ctx.addresses[0], timeout=60)

    def publish(self, tensors: Any, name: str = "weights", **more: Any) -> weights.Source:
        self.end.enter_context(weights.publish(self.source_ctx, tensors, name=name, **more))
        return weights.lookup(self.ctx, self.peer, name, timeout=60)

    def plan(self, sources: Any, target: Any, **more: Any) -> weights.Plan:
        return self.end.enter_context(weights.plan(sources, target, **more))

    def fill(self, sources: Any, target: Any, shadow: str = "cpu", **more: Any) -> weights.Plan:
        plan = self.plan(sources, target, shadow=shadow)
        plan.pull(timeout=20, **more).wait()
        plan.commit()
        return plan


def random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8).view(dtype).reshape(shape)


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    """Normal numbers of a type, as words, with infinities and what rounds to even."""
    values = np.random.default_rng(3).normal(0, 20, shape).astype(np.float32)
    values.reshape(-1)[:4] = [np.inf, -np.inf, 0.0, 1e-30]
    return cast(values.view(np.uint32), "float32", dtype)


def cast(words: Any, source: str, target: str) -> Any:
    """Casts by hmc.layout, which has tests of its own against NumPy."""
    size = {"f": 4, "b": 2}.get(target[0]) if target != "float16" else 2
    made = np.zeros(words.shape, WORDS[1 if target.startswith("float8") else int(size or 0)])
    text = f"L=1 B=1 N=1 D={words.shape[-1]} "
    for row in range(words.shape[0]):
        layout.convert(Layout(text + CASTS[source]), words[row], [0], Layout(text + CASTS[target]), made[row], [0], 1)
    return made
