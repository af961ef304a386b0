"""Digests and conversions of a KV cache in the memory of one device, beside a plain copy, every byte compared with the CPU's.

Usage: python bench/layout_devices.py [--device cuda:0] [--tokens 4096 32768] [--repeat 10] [--json FILE]

The cache is Llama-3-8B's: 32 layers, 8 heads of 128, K and V. Prints medians in GB/s (10^9 bytes per second) of whole calls, with
what Python and the host take:

- copy: a cache into another one of the device, bytes read and written;
- digest: the table by layer, head and block, bytes read;
- convert: bytes read and written.

The smallest number of tokens is compared with the CPU's result, element by element; the payload of a NaN is free.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

import hmc
from hmc import layout
from hmc.layout import Layout

PLAIN = "L=32 B={blocks} kv H=8 N=16 D=128 bf16"
DIGESTS = {
    "B kv H N D": PLAIN,
    "B kv N H D": "L=32 B={blocks} kv N=16 H=8 D=128 bf16",
    "B H N (kv D)": "L=32 B={blocks} H=8 N=16 (kv D=128) bf16",
    "B kv H D/8 N 8": "L=32 B={blocks} kv H=8 D=128/8 N=16 8 bf16",
    "B kv H D N": "L=32 B={blocks} kv H=8 D=128 N=16 bf16",
    "B kv H N D, fp8": "L=32 B={blocks} kv H=8 N=16 D=128 f8_e4m3fn",
    "B kv H N D, f32": "L=32 B={blocks} kv H=8 N=16 D=128 f32",
    "B N D, latent": "L=61 B={blocks} N=16 D=576 bf16",
}
CONVERSIONS = {
    "heads and tokens change places": (PLAIN, "L=32 B={blocks} kv N=16 H=8 D=128 bf16"),
    "blocks of 16 to 64": (PLAIN, "L=32 B={quarter} H=8 N=64 (kv D=128) bf16"),
    "D to D/8 N 8": (PLAIN, "L=32 B={blocks} kv H=8 D=128/8 N=16 8 bf16"),
    "N D to D N": (PLAIN, "L=32 B={quarter} kv H=8 D=128 N=64 bf16"),
    "D N to N D": ("L=32 B={quarter} kv H=8 D=128 N=64 bf16", PLAIN),
    "cast to fp8": (PLAIN, "L=32 B={blocks} kv H=8 N=16 D=128 f8_e4m3fn scale=0.5,0.25"),
    "cast from fp8": ("L=32 B={blocks} kv H=8 N=16 D=128 f8_e4m3fn scale=0.5", PLAIN),
    "cast to f16, turned": (PLAIN, "L=32 B={blocks} kv N=16 H=8 D=128 f16"),
}


def described(text: str, tokens: int) -> Layout:
    return Layout(text.format(blocks=tokens // 16, quarter=tokens // 64))


def ready(call: Callable[[], Any]) -> Any:
    """What a call returns, at the latest once a run-time compiler has made its kernel."""
    until = time.monotonic() + 120
    while True:
        try:
            return call()
        except hmc.UnsupportedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def timed(call: Callable[[], Any], repeat: int) -> float:
    """Median seconds of a call, after one that is not counted."""
    times = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def numbers(made: Layout) -> Any:
    """A cache in CPU memory: every pattern of bits, over and over with a period that is no power of two."""
    period = np.random.default_rng(5).integers(0, 256, 4 * 1000003, dtype=np.uint8)
    return np.resize(period, made.buffer_bytes)


def different(dtype: str, found: Any, wanted: Any) -> int:
    """Elements that differ."""
    kind = {"bf16": np.uint16, "f16": np.uint16, "f32": np.uint32}.get(dtype, np.uint8)
    a, b = found.view(kind), wanted.view(kind)
    at = np.flatnonzero(a != b)
    a, b = a[at], b[at]
    if dtype in ("bf16", "f16", "f32"):
        magnitude, infinity = {"bf16": (0x7FFF, 0x7F80), "f16": (0x7FFF, 0x7C00), "f32": (0x7FFFFFFF, 0x7F800000)}[dtype]
        nan = ((a & magnitude) > infinity) & ((b & magnitude) > infinity)
        return int((~nan).sum())
    return len(at)


class Cache:
    """Pages of a device, all of which a sequence has, in a random order."""

    def __init__(self, text: str, tokens: int, device: str, compared: bool) -> None:
        self.layout = described(text, tokens)
        self.blocks = np.random.default_rng(6).permutation(self.layout.blocks).astype(np.uint64)
        self.memory = hmc.Memory(self.layout.buffer_bytes, device)
        self.here = numbers(self.layout) if compared else None
        self.memory.copy_from(numbers(self.layout) if self.here is None else self.here)

    def read(self) -> Any:
        found = np.empty(self.layout.buffer_bytes, np.uint8)
        self.memory.copy_to(found)
        return found


def copies(tokens: int, device: str, repeat: int) -> float:
    source, target = Cache(PLAIN, tokens, device, False), Cache(PLAIN, tokens, device, False)
    nbytes = source.layout.buffer_bytes
    return 2 * nbytes / timed(lambda: target.memory.copy_from(source.memory), repeat) / 1e9


def digests(text: str, tokens: int, device: str, repeat: int, compared: bool) -> float:
    cache = Cache(text, tokens, device, compared)
    found = ready(lambda: layout.digests(cache.layout, cache.memory, cache.blocks, tokens))
    one = ready(lambda: layout.digest(cache.layout, cache.memory, cache.blocks, tokens))
    assert one == int(found.sum(dtype=np.uint64)), f"{cache.layout}: the sum of the digests is not the digest"
    if cache.here is not None:
        wanted = layout.digests(cache.layout, cache.here, cache.blocks, tokens)
        assert np.array_equal(found, wanted), f"{cache.layout}: {(found != wanted).sum()} of {found.size} digests differ"
    seconds = timed(lambda: layout.digests(cache.layout, cache.memory, cache.blocks, tokens), repeat)
    return cache.layout.buffer_bytes / seconds / 1e9


def conversions(texts: tuple[str, str], tokens: int, device: str, repeat: int, compared: bool) -> float:
    source, target = (Cache(text, tokens, device, compared) for text in texts)

    def convert(read: Any, written: Any, digest: Literal["source"] | None = None) -> int:
        return layout.convert(source.layout, read, source.blocks, target.layout, written, target.blocks, tokens, digest=digest)

    found = ready(lambda: convert(source.memory, target.memory, "source"))
    if compared:
        assert found == convert(source.here, target.here, "source"), f"{source.layout} to {target.layout}: another digest"
        count = different(target.layout.dtype, target.read(), target.here)
        assert count == 0, f"{source.layout} to {target.layout}: {count} elements differ"
    seconds = timed(lambda: convert(source.memory, target.memory), repeat)
    return (source.layout.buffer_bytes + target.layout.buffer_bytes) / seconds / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 32768], help="multiples of 64")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for tokens in given.tokens:
        compared = tokens == min(given.tokens)
        copy = copies(tokens, given.device, given.repeat)
        found = results[f"{tokens} tokens"] = {"copy": copy}
        print(f"{tokens} tokens on {given.device}{', compared with the CPU' if compared else ''}\n  {'copy':52} {copy:8.1f} GB/s")
        for name, text in DIGESTS.items():
            found[f"digest {name}"] = digests(text, tokens, given.device, given.repeat, compared)
        for name, texts in CONVERSIONS.items():
            found[f"convert {name}"] = conversions(texts, tokens, given.device, given.repeat, compared)
        for name, value in list(found.items())[1:]:
            print(f"  {name:52} {value:8.1f} GB/s  {value / copy:5.2f} of copy", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
