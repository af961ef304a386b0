"""Two Contexts with a pool each, for the tests of hmc.kv."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from device_arrays import DEVICES, array_on, here, registrable, transports_of

import hmc
from hmc import kv, layout
from hmc.layout import Layout

DTYPE = {"f16": 2, "bf16": 2, "f32": 4, "f8_e4m3fn": 1}


class Side:
    """A Context with a pool over arrays of its own, on the CPU or on a device."""

    def __init__(self, text: str, seed: int, device: str = "", **more: Any) -> None:
        if not device:
            device = DEVICES[(seed - 1) % len(DEVICES)] if DEVICES else "cpu"
        if "transports" in more:
            more["transports"] = transports_of(more["transports"])
        self.ctx = hmc.Context(**more)
        self.layout = Layout(text)
        rng = np.random.default_rng(seed)
        made = [rng.integers(0, 256, self.layout.buffer_bytes, dtype=np.uint8) for _ in range(self.layout.buffers)]
        if self.layout.dtype != "f8_e4m3fn":  # numbers that a cast keeps apart
            for array in made:
                words = array.view({2: np.uint16, 4: np.uint32}[DTYPE[self.layout.dtype]])
                values = rng.normal(0, 1, words.size).astype(np.float32)
                if self.layout.dtype == "bf16":
                    words[:] = values.view(np.uint32) >> 16
                elif self.layout.dtype == "f16":
                    words[:] = values.astype(np.float16).view(np.uint16)
                else:
                    words[:] = values.view(np.uint32)
        self.arrays: list[Any] = [array_on(array, device) for array in made]
        self.pool = kv.Pool(self.ctx, registrable(self.arrays), self.layout)

    def use_memory_of_hmc(self, access: str = "r") -> None:
        """Moves the arrays to memory that HMC allocates: other processes of the host map it, and load from it."""
        self.pool.close()
        buffers = [self.ctx.buffer(array.nbytes, access=access) for array in self.arrays]
        for buffer, array in zip(buffers, self.arrays, strict=True):
            buffer.numpy()[:] = array
        self.arrays = [buffer.numpy() for buffer in buffers]
        self.pool = kv.Pool(self.ctx, buffers, self.layout)

    def close(self) -> None:
        self.pool.close()
        self.ctx.close()


PLAIN = "L=3 B=12 H=4 N=16 (kv D=32) bf16"
TURNED = "L=3 B=9 kv H=4 D=32 N=32 bf16"
TOKEN = 4 * 2 * 32 * 2  # bytes of a token and a layer
PAIRS = [
    ("L=3 B=12 H=4 N=16 (kv D=32) bf16", "L=3 B=12 H=4 N=16 (kv D=32) bf16"),
    ("L=3 | B=12 kv N=16 H=4 D=32 bf16", "L=3 | B=12 kv N=16 H=4 D=32 bf16"),
    ("L=3 B=12 H=4 N=16 (kv D=32) bf16", "L=3 B=9 H=4 N=32 (kv D=32) bf16"),
    ("L=3 B=12 kv H=4 D=32 N=32 bf16", "L=3 B=9 kv H=4 D=32 N=64 bf16"),
    ("L=3 B=12 kv H=4 N=32 D=32 bf16", "L=3 kv | B=13 H=4 D=32/8 N=16 8 bf16"),
    ("L=3 B=12 H=4 N=16 (kv D=32) bf16", "L=2@1 B=12 H=2@2 N=16 (kv D=32) bf16"),
    ("L=2@1 B=12 H=2@2 N=16 (kv D=32) bf16", "L=4 B=12 H=4 N=32 (kv D=32) bf16"),
    ("L=3 B=12 H=4 N=16 (kv D=32) bf16", "L=3 B=12 kv N=16 H=4 D=32 f8_e4m3fn scale=0.02,0.03"),
    ("L=3 B=12 H=4 N=16 (kv D=32) f8_e4m3fn scale=0.5", "L=3 B=12 H=4 N=16 (kv D=32) f16"),
    ("L=3 B=12 N=16 D=64 bf16", "L=3 B=12 N=16 D=64 f32"),
]


@contextmanager
def connected(prefill: str, decode: str, devices: tuple[str, str] = ("", ""), **more: Any) -> Iterator[tuple[Side, Side, Any, Any]]:
    """Two sides, the peer that the second sees, and the peer that the first sees."""
    a, b = Side(prefill, 1, devices[0], **more), Side(decode, 2, devices[1], **more)
    try:
        to_a = b.ctx.connect(a.ctx.addresses[0], timeout=60)
        yield a, b, to_a, a.ctx.accept(timeout=60)
    finally:
        a.close()
        b.close()


def expected(a: Side, a_blocks: Any, b: Side, b_blocks: Any, tokens: int, **where: int) -> list[Any]:
    """What b's arrays hold after the move, by a conversion without any connection."""
    after = [array.copy() for array in b.arrays]
    layout.convert(a.layout, here(a.arrays), a_blocks, b.layout, after, b_blocks, tokens, **where)
    return after


def drain_unread(*sides: Side) -> None:
    """Waits until no message is unread on these sides: an answer may arrive after its transfer has ended."""
    until = time.monotonic() + 20
    while any(side.ctx.counters()["messages.unread"] for side in sides):
        assert time.monotonic() < until, [side.ctx.counters() for side in sides]
        time.sleep(0.001)


def same(b: Side, wanted: list[Any]) -> None:
    """Every byte of b's arrays is as wanted."""
    for found, array in zip(b.arrays, wanted, strict=True):
        assert np.array_equal(np.asarray(found), array)
