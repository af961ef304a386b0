"""As a script: pulls and pushes between pools on every ordered pair of the named devices, every byte compared."""

from __future__ import annotations

import itertools
import sys

from kv_sides import PLAIN, TURNED, connected, expected, same

from hmc import kv

CACHES = [
    (PLAIN, PLAIN),  # blocks as they are
    ("L=3 | B=12 kv N=16 H=4 D=32 bf16", "L=3 | B=12 kv N=16 H=4 D=32 bf16"),  # an array for each layer
    (PLAIN, TURNED),  # permuted, into other blocks
    ("L=2@1 B=12 N=16 H=2@2 (kv D=33) f16", "L=4 B=7 N=32 H=4 (kv D=33) f32"),  # a slice, cast; rows of an odd length
]
FIRST, TOKENS = 21, 59


def computed_there(pool: kv.Pool, device: str) -> None:
    """Says by its counters where a pool's digests and conversions were: AMD's kernels may still be compiling."""
    staged = pool.counters().get("bytes_staged", 0)
    assert device.startswith("rocm") or (staged > 0) == (device.split(":")[0] in ("hygon", "mlu", "musa")), (device, staged)


def move(devices: tuple[str, str], prefill: str, decode: str) -> None:
    with connected(prefill, decode, devices) as (a, b, to_a, to_b):
        tokens, mine = FIRST + TOKENS, list(range(11, 5, -1))
        theirs = list(range(-(-tokens // b.layout.block)))
        wanted = expected(a, mine, b, theirs, tokens)
        b.pool.pull(to_a, a.pool.lease("s", mine, tokens).ticket, theirs, session="s").wait(30)
        same(b, wanted)
        if "cpu" not in devices and prefill == decode:
            assert "bytes_converted" not in b.pool.counters("s")
        computed_there(a.pool, devices[0])
        computed_there(b.pool, devices[1])
    with connected(prefill, decode, devices) as (a, b, to_a, to_b):
        theirs = list(range(1, 1 - (-tokens // b.layout.block)))
        wanted = expected(a, mine, b, theirs, TOKENS, source_first=FIRST, target_first=3)
        inbox = b.pool.receive(to_a, theirs, TOKENS, first=3)
        with a.pool.push(to_b, inbox.ticket, mine, first=FIRST) as push:
            for layer in range(a.layout.layers[0], sum(a.layout.layers)):
                push.ready(layer, timeout=20)
        inbox.wait(30)
        same(b, wanted)
        computed_there(a.pool, devices[0])
        computed_there(b.pool, devices[1])


def main(devices: list[str]) -> None:
    pairs = list(itertools.product(devices, devices))
    for pair in pairs:
        for prefill, decode in CACHES:
            move(pair, prefill, decode)
    print("pairs:", len(pairs))


if __name__ == "__main__":
    main(sys.argv[1:])
