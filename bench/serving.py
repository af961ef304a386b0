"""KV caches of Llama-3-8B between two processes and between two layouts, as ratios to memcpy of the same blocks, in one run.

Usage: python bench/serving.py [--tokens 1024] [--repeat 5] [--json FILE]. Both cores should be otherwise idle.

memcpy: as many bytes from one cache to another, block by block, by one thread. A ratio is bytes read per second over memcpy's.
Figures are medians of the repetitions, between which memcpy runs. A push is timed from the first ready() until the receiver has
accepted every layer.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hmc
from hmc import kv, layout
from hmc.layout import Layout

LAYERS, HEADS, DIMS = 32, 8, 128
ORDERS = {
    "pages": "L B kv H N D",  # a block of a layer is one piece
    "transposed": "L B kv H D N",
    "pairs": "L B N H kv D",
}
# (what, source's axes and block size, target's, type of the target)
CASES = [
    ("same layout", ("pages", 16), ("pages", 16), "bf16"),
    ("same layout, blocks of 64", ("pages", 64), ("pages", 64), "bf16"),
    ("block size 32 to 64", ("pages", 32), ("pages", 64), "bf16"),
    ("block size 32 to 64, transposed on both sides", ("transposed", 32), ("transposed", 64), "bf16"),
    ("block size 32 to 64 and a transpose", ("pages", 32), ("transposed", 64), "bf16"),
    ("tokens before heads", ("pages", 16), ("pairs", 16), "bf16"),
    ("bf16 to f8_e4m3fn", ("pages", 16), ("pages", 16), "f8_e4m3fn"),
    ("bf16 to f8_e4m3fn, another order", ("pages", 16), ("pairs", 32), "f8_e4m3fn"),
]


def made(order: str, block: int, dtype: str, tokens: int) -> Layout:
    scale = " scale=0.01" if dtype.startswith("f8") else ""
    return Layout(ORDERS[order] + scale, L=LAYERS, B=tokens // block, H=HEADS, N=block, D=DIMS, dtype=dtype)


def filled(cache: Any) -> Any:
    """bf16 numbers near 1, as a cache has them."""
    words = np.asarray(cache).view(np.uint16)
    for at in range(0, words.size, 1 << 22):
        part = words[at : at + (1 << 22)]
        part[:] = np.random.default_rng(at).normal(size=part.size).astype(np.float32).view(np.uint32) >> 16
    return cache


def median(call: Callable[[], Any], repeat: int) -> float:
    """Seconds of the median of several calls, after one that warms up."""
    times = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def memcpy(source: Any, target: Any, block: int, order: list[int]) -> Callable[[], None]:
    """Copies whole blocks, in the order given, to the blocks 0, 1, ... of each layer."""
    per_layer = len(order)
    pairs = [
        (target.ctypes.data + (layer * per_layer + i) * block, source.ctypes.data + (layer * per_layer + b) * block)
        for layer in range(LAYERS)
        for i, b in enumerate(order)
    ]

    def copy() -> None:
        for to, at in pairs:
            ctypes.memmove(to, at, block)

    return copy


def shuffled(count: int) -> list[int]:
    return [int(block) for block in np.random.default_rng(count).permutation(count)]


def other_process(tokens: int) -> None:
    """Leases pages, or offers pages to a push, as it is asked to."""
    ctx = hmc.Context()
    print(ctx.addresses[0], flush=True)
    peer = ctx.accept(timeout=30)
    pool, pages, memory = None, "", {}
    for line in sys.stdin:
        way, order, block, dtype, where, digest = json.loads(line)
        described = made(order, block, dtype, tokens)
        if where not in memory:
            size = made("pages", 16, "bf16", tokens).buffer_bytes  # the largest
            memory[where] = ctx.buffer(size) if where == "mapped" else np.zeros(size, np.uint8)
            filled(memory[where].numpy() if where == "mapped" else memory[where])
        if pool is not None and (pool.layout != described or pages != where):
            pool.close()
            pool = None
        pool, pages = pool or kv.Pool(ctx, memory[where], described), where
        begin = time.perf_counter()
        if way == "pull":
            ticket = pool.lease("bench", shuffled(described.blocks), seconds=600, digest=digest).ticket
        else:
            ticket = pool.receive(peer, shuffled(described.blocks), session="bench", verify=digest).ticket
        print(json.dumps([ticket.hex(), time.perf_counter() - begin]), flush=True)


def local(tokens: int, repeat: int) -> list[dict[str, Any]]:
    """Conversions within this process: what the loops take."""
    points = []
    size = made("pages", 16, "bf16", tokens).buffer_bytes
    source, target = filled(np.zeros(size, np.uint8)), np.ones(size, np.uint8)
    for what, (order, block), (to_order, to_block), dtype in CASES:
        a, b = made(order, block, "bf16", tokens), made(to_order, to_block, dtype, tokens)
        blocks, to_blocks = shuffled(a.blocks), list(range(b.blocks))
        baseline = median(memcpy(source, target, size // LAYERS // a.blocks, blocks), repeat)
        for digest in (None, "source"):
            seconds = median(
                lambda d=digest, x=a, y=b, p=blocks, q=to_blocks: layout.convert(x, source, p, y, target, q, tokens, digest=d),
                repeat,
            )
            points.append(
                {
                    "what": what,
                    "path": "convert",
                    "digest": digest is not None,
                    "bytes": size,
                    "seconds": seconds,
                    "memcpy": baseline,
                }
            )
    seconds = median(lambda: layout.digest(a, source, blocks, tokens), repeat)
    points.append(
        {"what": "digest alone", "path": "convert", "digest": True, "bytes": size, "seconds": seconds, "memcpy": baseline}
    )
    return points


def move(way: str, pool: kv.Pool, peer: hmc.Peer, ticket: bytes, here: Layout) -> None:
    """Pulls a lease, or pushes every layer."""
    if way == "pull":
        pool.pull(peer, ticket, range(here.blocks)).wait(60)
        return
    with pool.push(peer, ticket, range(here.blocks), session="bench") as push:
        for layer in range(LAYERS):
            push.ready(layer, timeout=60)


def between(tokens: int, repeat: int) -> list[dict[str, Any]]:
    """Pulls from and pushes to another process, whose memory is its own or mapped by HMC."""
    other = subprocess.Popen(
        [sys.executable, __file__, "--other", "--tokens", str(tokens)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None
    assert other.stdout is not None
    points = []
    size = made("pages", 16, "bf16", tokens).buffer_bytes
    source = filled(np.zeros(size, np.uint8))
    with hmc.Context() as ctx:
        peer = ctx.connect(other.stdout.readline().strip(), timeout=30)
        target = np.ones(size, np.uint8)
        for where in ("foreign", "mapped"):
            for what, (order, block), (to_order, to_block), dtype in CASES:
                a, b = made(order, block, "bf16", tokens), made(to_order, to_block, dtype, tokens)
                copy = memcpy(source, target, size // LAYERS // a.blocks, shuffled(a.blocks))
                for way, digest in ((way, digest) for way in ("pull", "push") for digest in (False, True)):
                    # The other process has the source of a pull and the target of a push.
                    here = b if way == "pull" else a
                    asked = (order, block, "bf16") if way == "pull" else (to_order, to_block, dtype)
                    with kv.Pool(ctx, target if way == "pull" else source, here) as pool:
                        times, copies = [], []
                        for _ in range(repeat + 1):
                            copies.append(median(copy, 1))
                            print(json.dumps([way, *asked, where, digest]), file=other.stdin, flush=True)
                            ticket, leasing = json.loads(other.stdout.readline())
                            begin = time.perf_counter()
                            move(way, pool, peer, bytes.fromhex(ticket), here)
                            times.append(time.perf_counter() - begin)
                        points.append(
                            {
                                "what": what,
                                "path": f"{way}, {where} memory",
                                "digest": digest,
                                "bytes": size,
                                "seconds": statistics.median(times[1:]),
                                "memcpy": statistics.median(copies[1:]),
                                "lease": leasing,
                            }
                        )
    other.stdin.close()
    other.wait(30)
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024, help="of the sequence; a multiple of 64")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also writes every figure to this file")
    parser.add_argument("--other", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.other:
        other_process(options.tokens)
        return
    points = local(options.tokens, options.repeat) + between(options.tokens, options.repeat)
    plain: dict[tuple[str, str], float] = {}
    for point in points:
        line = f"{point['path']:22} {point['what']:46} {point['bytes'] / point['seconds'] / 1e9:6.1f} GB/s"
        line += f"  {point['memcpy'] / point['seconds']:5.2f} of memcpy"
        if point["digest"]:
            before = plain.get((point["path"], point["what"]))
            line += "  digest" + ("" if before is None else f" {100 * (point['seconds'] / before - 1):+.0f} %")
        else:
            plain[point["path"], point["what"]] = point["seconds"]
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(points, indent=1))


if __name__ == "__main__":
    main()
