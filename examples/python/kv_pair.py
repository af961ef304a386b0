"""Prefill here, decode there: two processes with different caches. Run: python examples/python/kv_pair.py"""

import subprocess
import sys

import numpy as np

import hmc
from hmc import kv, layout

# The prefill engine: blocks of 16 tokens, f16, a token's K and V side by side.
PREFILL = layout.Layout("L=4 B=64 H=8 N=16 (kv D=64) f16")
# The decode engine: blocks of 32 tokens, f32, K and V apart, tokens before heads.
DECODE = layout.Layout("L=4 | B=32 kv N=32 H=8 D=64 f32")
TOKENS = 150


def prefill() -> None:
    """Computes the KV cache of two sessions; lends one, pushes the other while it computes."""
    with hmc.Context() as ctx:
        cache = np.zeros((4, 64, 8, 16, 2, 64), np.float16)
        with kv.Pool(ctx, cache, PREFILL) as pool:
            print(ctx.addresses[0], flush=True)
            decode = ctx.accept(timeout=30)

            blocks = pool.allocate("first", TOKENS)
            cache[:, blocks] = np.random.default_rng(1).normal(size=cache[:, blocks].shape)
            lease = pool.lease("first", tokens=TOKENS, peer=decode, seconds=30)
            print(lease.ticket.hex(), flush=True)
            print("the lease ended:", lease.wait(timeout=30), file=sys.stderr)

            offer = bytes.fromhex(sys.stdin.readline())
            blocks = pool.allocate("second", TOKENS)
            with pool.push(decode, offer, session="second") as push:
                for layer in range(4):
                    values = np.random.default_rng([2, layer]).normal(size=cache[layer, blocks].shape)
                    cache[layer, blocks] = values  # the layer is computed
                    push.ready(layer, timeout=30)
            pool.free("second")
            assert pool.free_blocks == 64


def decode(prefill: "subprocess.Popen[str]") -> None:
    """Receives both sessions into its own pages."""
    assert prefill.stdin is not None
    assert prefill.stdout is not None
    with hmc.Context() as ctx:
        caches = [np.zeros((32, 2, 32, 8, 64), np.float32) for _ in range(4)]
        with kv.Pool(ctx, caches, DECODE) as pool:
            peer = ctx.connect(prefill.stdout.readline().strip(), timeout=30)

            ticket = bytes.fromhex(prefill.stdout.readline())
            blocks = pool.allocate("first", TOKENS)
            pool.pull(peer, ticket, session="first").wait(timeout=30)
            print("pulled", pool.counters("first"))
            expected = np.random.default_rng(1).normal(size=(4, 10, 8, 16, 2, 64)).astype(np.float16)
            check(caches, blocks, expected)

            blocks = pool.allocate("second", TOKENS)
            inbox = pool.receive(peer, tokens=TOKENS, session="second", timeout=30)
            print(inbox.ticket.hex(), file=prefill.stdin, flush=True)
            inbox.wait_layer(0, timeout=30)  # decode may begin with layer 0 now
            inbox.wait(timeout=30)
            print("received layers", inbox.layers)
            layers = [np.random.default_rng([2, layer]).normal(size=(10, 8, 16, 2, 64)) for layer in range(4)]
            check(caches, blocks, np.array(layers).astype(np.float16))


def check(caches: "list[np.ndarray]", blocks: "list[int]", expected: "np.ndarray") -> None:
    """Compares every number: (L, blocks, H, N, kv, D) of prefill with a list of (blocks, kv, N, H, D) here."""
    for layer, cache in enumerate(caches):
        here = cache[blocks].transpose(0, 2, 3, 1, 4).reshape(-1, 8, 2, 64)[:TOKENS]
        there = expected[layer].transpose(0, 2, 1, 3, 4).reshape(-1, 8, 2, 64)[:TOKENS]
        assert (here == there).all()


def main() -> None:
    """Starts prefill as a separate process, then decodes."""
    if len(sys.argv) > 1:
        prefill()
        return
    other = subprocess.Popen([sys.executable, __file__, "prefill"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    decode(other)
    assert other.wait(timeout=30) == 0
    print("done")


if __name__ == "__main__":
    main()
