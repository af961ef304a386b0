"""As a script: conversions and digests of random layouts in the memory of the named devices, every byte against the CPU's."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from test_layout import ORDERS, SIZE, Cache, pair, random_order

import hmc
from hmc import layout

KINDS = list(SIZE)


def ready(call: Callable[[], Any]) -> Any:
    """What a call returns, at the latest once a run-time compiler has made its kernel."""
    until = time.monotonic() + 120
    while True:
        try:
            return call()
        except hmc.UnsupportedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.001)


def on(device: str, cache: Cache) -> list[hmc.Memory]:
    """A copy of a cache's arrays in the memory of a device."""
    made = []
    for array in cache.arrays:
        made.append(hmc.Memory(array.nbytes, device))
        made[-1].copy_from(array)
    return made


def same(cache: Cache, memories: list[hmc.Memory]) -> bool:
    """Whether a device has the arrays' bytes; the payload of a NaN is free."""
    for array, memory in zip(cache.arrays, memories, strict=True):
        found = np.empty(array.nbytes, np.uint8)
        memory.copy_to(found)
        a, b = array.reshape(-1).view(np.uint8), found
        if cache.layout.dtype == "bf16":
            a, b = ((x.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for x in (a, b))
        elif cache.layout.dtype in ("f16", "f32"):
            a, b = (x.view(cache.layout.dtype.replace("f", "float")) for x in (a, b))
        equal = (
            a == b if a.dtype == np.uint8 else (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b))
        )
        if not equal.all():
            return False
    return True


def check(device: str, seed: int) -> None:
    rng = random.Random(seed)
    orders = [random_order(rng) if rng.random() < 0.7 else rng.choice(ORDERS) for _ in range(2)]
    kinds = rng.choice(KINDS), rng.choice(KINDS)
    source, target, how = pair(rng, orders[0], orders[1], *kinds)
    read, written = on(device, source), on(device, target)
    (from_blocks, to_blocks), tokens = how.pop("blocks"), how.pop("tokens")
    digests = [None, "source"] if kinds[0] != kinds[1] else [None, "source", "target"]  # the bits of a NaN that is cast may differ
    how |= {"position": rng.randrange(1 << 20), "digest": rng.choice(digests)}

    def convert(read: Any, written: Any) -> int:
        return layout.convert(source.layout, read, from_blocks, target.layout, written, to_blocks, tokens, **how)

    found, wanted = ready(lambda: convert(read, written)), convert(source.arrays, target.arrays)
    assert found == wanted, (seed, orders, kinds)
    assert same(target, written), (seed, orders, kinds)
    assert same(source, read), (seed, orders, kinds)
    where = {"first": how["source_first"], "position": how["position"]}
    table = ready(lambda: layout.digests(source.layout, read, from_blocks, tokens, **where))
    assert (table == layout.digests(source.layout, source.arrays, from_blocks, tokens, **where)).all(), (seed, orders, kinds)
    assert layout.digest(source.layout, read, from_blocks, tokens, **where) == int(table.sum(dtype=np.uint64))


def main(count: int, devices: list[str]) -> None:
    for device in devices:
        for seed in range(count):
            check(device, seed)
    print("checked:", count * len(devices))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
