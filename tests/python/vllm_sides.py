"""The vLLM connector without vLLM: a prefill worker's Lender and a decode worker's Fetcher, between two Contexts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import hmc
from hmc import kv, layout
from hmc.integrations.vllm._fetcher import Fetch, Fetcher
from hmc.integrations.vllm._lender import Lender
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source
from hmc.integrations.vllm._tally import Tally
from hmc.layout import Layout

# K by dimensions, V by tokens, a buffer for each layer: vLLM's CPU attention.
K = "L={layers} | B={blocks} H=4 D=32 N={block} f32"
V = "L={layers} | B={blocks} H=4 N={block} D=32 f32"


class Half:
    """A worker's pools and their arrays."""

    def __init__(self, block: int, seed: int, layers: int = 3, **context: Any) -> None:
        rng = np.random.default_rng(seed)
        self.ctx = hmc.Context(**context)
        self.block = block
        self.layouts = [Layout(text.format(layers=layers, blocks=1024 // block, block=block)) for text in (K, V)]
        self.arrays = [[rng.random(one.buffer_bytes // 4, dtype=np.float32) for _ in range(layers)] for one in self.layouts]
        self.pools = [kv.Pool(self.ctx, arrays, one, access="r") for arrays, one in zip(self.arrays, self.layouts, strict=True)]

    def tokens(self, blocks: list[int], first: int, tokens: int) -> list[Any]:
        """K and V of some tokens, as (layers, heads, dimensions, tokens)-like bytes in one plain layout."""
        found = []
        size = -(-tokens // 16)
        plain = Layout(f"L=3 B={size} N=16 H=4 D=32 f32")
        for one, arrays in zip(self.layouts, self.arrays, strict=True):
            out = np.zeros(plain.buffer_bytes, np.uint8)
            layout.convert(one, arrays, blocks, plain, out, list(range(size)), tokens, source_first=first)
            found.append(out)
        return found

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
        self.ctx.close()


class Sides:
    """Prefill with blocks of 32 tokens, decode with others."""

    def __init__(self, block: int, seconds: float, pools: int, layers: int) -> None:
        self.prefill = Half(32, 1, layers, listen="tcp://127.0.0.1:0")
        self.decode = Half(block, 2)
        self.lent, self.loaded = Tally(), Tally()
        self.lender = Lender(self.prefill.ctx, self.prefill.pools, "engine", "model", seconds, self.lent)
        port = next(int(text.rsplit(":", 1)[1]) for text in self.prefill.ctx.addresses if text.startswith("tcp"))
        self.sources: Callable[[Remote], list[Source]] = lambda remote: [Source(remote.address(0, 0))]
        self.remote = Remote("engine", "r", "127.0.0.1", port)
        self.fetcher = self.fetcher_of("model", pools)

    def fetcher_of(self, model: str, pools: int = 2) -> Fetcher:
        return Fetcher(
            self.decode.ctx,
            self.decode.pools[:pools],
            lambda remote: self.sources(remote),
            model,
            timeout=20,
            tally=self.loaded,
        )

    def of(self, request: str, engine: str = "engine") -> Remote:
        return Remote(engine, request, self.remote.host, self.remote.port)

    def fetch(self, remote: Remote, blocks: list[int], tokens: int, skip: int = 0, first: int = 0) -> tuple[set[str], set[int]]:
        """Fetches and waits. The requests that have ended, and the blocks that failed."""
        self.fetcher.fetch(Fetch("local " + remote.request, remote, blocks, skip, tokens, first))
        return wait_for(lambda: any(found := self.fetcher.finished()) and found)

    def lender_ended(self) -> set[str]:
        """The requests that the lender returns next."""
        found: set[str] = wait_for(self.lender.finished)
        return found

    def close(self) -> None:
        self.fetcher.close()
        self.lender.close()
        self.decode.close()
        self.prefill.close()


def wait_for(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of ``look``."""
    until = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < until, "it has not happened in time"
        time.sleep(0.005)


@contextmanager
def two_sides(block: int = 32, seconds: float = 20.0, pools: int = 2, layers: int = 3) -> Iterator[Sides]:
    sides = Sides(block, seconds, pools, layers)
    try:
        yield sides
    finally:
        sides.close()
