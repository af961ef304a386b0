"""Weights from one process to others, TP 1 to TP 2, as ratios to memcpy of the same bytes, in one run.

Usage: python bench/weights.py [--layers 1] [--receivers 4] [--repeat 7] [--json FILE]. Both cores should be otherwise idle.

The source holds layers of Llama-3-8B in bf16; each receiver pulls rank 0 of 2. memcpy copies as many bytes within the receiver's
process, by one thread. Measurements alternate; a figure is the median of --repeat. "own" is memory of the source's own; "mapped" is
memory that HMC allocated and receivers map. Several receivers pull at once: a ratio is time per byte received, over that of one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import hmc
from hmc import weights

HIDDEN, INNER, KV = 4096, 14336, 1024
# name: (shape, axis of the split)
LAYER = {
    "q_proj": ((HIDDEN, HIDDEN), 0),
    "k_proj": ((KV, HIDDEN), 0),
    "v_proj": ((KV, HIDDEN), 0),
    "o_proj": ((HIDDEN, HIDDEN), 1),
    "gate_proj": ((INNER, HIDDEN), 0),
    "up_proj": ((INNER, HIDDEN), 0),
    "down_proj": ((HIDDEN, INNER), 1),
    "norm": ((HIDDEN,), None),
}


def shapes(layers: int) -> dict[str, tuple[tuple[int, ...], int | None]]:
    return {f"layers.{i}.{name}": one for i in range(layers) for name, one in LAYER.items()}


def source(layers: int) -> None:
    """The process that publishes: "own" and "mapped"."""
    ctx = hmc.Context()
    kept = []
    for where in ("own", "mapped"):
        tensors = {}
        for name, (shape, _) in shapes(layers).items():
            size = int(np.prod(shape))
            words = np.empty(size, np.uint16) if where == "own" else ctx.buffer(2 * size).numpy(np.uint16)
            for at in range(0, size, 1 << 22):
                part = words[at : at + (1 << 22)]
                part[:] = np.random.default_rng(at).integers(0, 1 << 16, part.size, dtype=np.uint16)
            tensors[name] = weights.part(words.reshape(shape), dtype="bfloat16")
        kept.append(weights.publish(ctx, tensors, epoch=1, name=where))
    print(ctx.addresses[0], flush=True)
    sys.stdin.readline()


class Receiver:
    """Plans of both publications for rank 0 of 2."""

    def __init__(self, address: str, layers: int) -> None:
        self.ctx = hmc.Context()
        peer = self.ctx.connect(address, timeout=30)
        self.plans = {}
        for where in ("own", "mapped"):
            target = {}
            for name, (shape, axis) in shapes(layers).items():
                extents = tuple(extent // 2 if number == axis else extent for number, extent in enumerate(shape))
                target[name] = weights.part(np.zeros(extents, np.uint16), shape, dtype="bfloat16")
            self.plans[where] = weights.plan(weights.lookup(self.ctx, peer, where, timeout=30), target)
        self.nbytes = self.plans["own"].nbytes
        self.copies = np.ones(self.nbytes, np.uint8), np.ones(self.nbytes, np.uint8)

    def measure(self, what: str) -> float:
        begin = time.perf_counter()
        if what == "memcpy":
            np.copyto(*self.copies)
        else:
            where, _, how = what.partition(" ")
            self.plans[where].pull(verify="digest" in how, timeout=60).wait()
            if "commit" in how:
                self.plans[where].commit()
        return time.perf_counter() - begin


def receiver(address: str, layers: int) -> None:
    """A process that pulls on command."""
    one = Receiver(address, layers)
    print("ready", flush=True)
    for line in sys.stdin:
        one.measure(line.strip())
        print("pulled", flush=True)


def started(*arguments: str) -> Any:
    return subprocess.Popen([sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def together(others: list[Any], what: str) -> float:
    """Seconds until all of some receivers have pulled."""
    begin = time.perf_counter()
    for other in others:
        print(what, file=other.stdin, flush=True)
    for other in others:
        assert other.stdout.readline() == "pulled\n"
    return time.perf_counter() - begin


def compare(options: argparse.Namespace) -> None:
    layers = ["--layers", str(options.layers)]
    publisher = started("--source", *layers)
    address = publisher.stdout.readline().strip()
    one = Receiver(address, options.layers)
    cases = ["memcpy"] + [f"{where}{how}" for where in ("own", "mapped") for how in ("", " digest", " digest commit")]
    times: dict[str, list[float]] = {case: [] for case in cases}
    for turn in range(options.repeat + 1):
        for case in cases:
            seconds = one.measure(case)
            if turn:
                times[case].append(seconds)
    points: dict[str, Any] = {"bytes": one.nbytes}
    baseline = statistics.median(times["memcpy"])
    for case, found in times.items():
        seconds = statistics.median(found)
        points[case] = {"seconds": seconds, "of_memcpy": baseline / seconds}
        print(f"{case:22} {one.nbytes / seconds / 1e9:6.2f} GB/s  {baseline / seconds:5.2f} of memcpy")
    others = [started("--receiver", address, *layers) for _ in range(options.receivers)]
    assert all(other.stdout.readline() == "ready\n" for other in others)
    counts = sorted({1, 2, options.receivers})
    for what in ("own digest", "mapped digest"):
        shared: dict[int, list[float]] = {count: [] for count in counts}
        for turn in range(options.repeat + 1):
            for count in counts:
                seconds = together(others[:count], what)
                if turn:
                    shared[count].append(seconds)
        for count in counts:
            ratio = statistics.median(shared[count]) / count / statistics.median(shared[1])
            points[f"{what}, {count} receivers"] = {"seconds": statistics.median(shared[count]), "per_byte": ratio}
            print(f"{what + f', {count} receivers':28} {ratio:5.2f} of 1 to 1 per byte received")
    for other in (*others, publisher):
        other.stdin.close()
        other.wait(30)
    if options.json is not None:
        options.json.write_text(json.dumps(points, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--receivers", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also writes every figure to this file")
    parser.add_argument("--source", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--receiver", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.source:
        source(options.layers)
    elif options.receiver:
        receiver(options.receiver, options.layers)
    else:
        compare(options)


if __name__ == "__main__":
    main()
