"""The vLLM connector without vLLM, between two Contexts: a Lender and a Fetcher (mode pull), a Sender and a Receiver (push)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import hmc
from hmc import kv, layout
from hmc.integrations.vllm._fetcher import Fetcher
from hmc.integrations.vllm._lender import Lender
from hmc.integrations.vllm._loading import Fetch
from hmc.integrations.vllm._outgoing import Chunk
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source
from hmc.integrations.vllm._receiver import Receiver
from hmc.integrations.vllm._sender import Sender
from hmc.integrations.vllm._tally import Tally
from hmc.layout import Layout

# K by dimensions, V by tokens, a buffer for each layer: vLLM's CPU attention.
K = "L={layers} | B={blocks} H=4 D=32 N={block} f32"
V = "L={layers} | B={blocks} H=4 N={block} D=32 f32"


SOURCE = [9, 3, 30, 4]  # blocks of prefill


def chunk(end: int, tokens: int, blocks: list[int] = SOURCE, name: str = "t", prompt: str = "") -> Chunk:
    """A step that computes a prompt of so many tokens as far as ``end``, in mode push."""
    return Chunk("request " + name, name, blocks[: -(-end // 32)], end, tokens, prompt)


class Half:
    """A worker's pools and their arrays."""

    def __init__(self, block: int, seed: int, layers: int = 3, access: str = "r", **context: Any) -> None:
        rng = np.random.default_rng(seed)
        self.ctx = hmc.Context(**context)
        self.block = block
        self.layouts = [Layout(text.format(layers=layers, blocks=1024 // block, block=block)) for text in (K, V)]
        self.arrays = [[rng.random(one.buffer_bytes // 4, dtype=np.float32) for _ in range(layers)] for one in self.layouts]
        self.pools = [kv.Pool(self.ctx, arrays, one, access=access) for arrays, one in zip(self.arrays, self.layouts, strict=True)]

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

    def fetch(
        self, remote: Remote, blocks: list[int], tokens: int, skip: int = 0, first: int = 0, prompt: str = ""
    ) -> tuple[set[str], set[int]]:
        """Fetches and waits. The requests that have ended, and the blocks that failed."""
        self.fetcher.fetch(Fetch("local " + remote.request, remote, blocks, skip, tokens, first, prompt))
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


class PushSides:
    """Prefill with blocks of 32 tokens, decode with others, in mode push. ``compute`` is the prefill engine's model."""

    def __init__(self, block: int, seconds: float, credits: int, timeout: float) -> None:
        self.prefill = Half(32, 1, listen="tcp://127.0.0.1:0")
        self.decode = Half(block, 2, access="rw")
        self.sent, self.loaded = Tally(), Tally()
        self.sender = Sender(self.prefill.ctx, self.prefill.pools, "engine", "model", seconds, credits, self.sent)
        port = next(int(text.rsplit(":", 1)[1]) for text in self.prefill.ctx.addresses if text.startswith("tcp"))
        self.remote = Remote("engine", "t", "127.0.0.1", port)
        self.readers = 1
        self.receiver = self.receiver_of("model", timeout=timeout)
        self._computed = [[array.copy() for array in arrays] for arrays in self.prefill.arrays]
        for arrays in self.prefill.arrays:
            for array in arrays:
                array[:] = -1.0

    def receiver_of(self, model: str, pools: int = 2, timeout: float = 20.0) -> Receiver:
        return Receiver(
            self.decode.ctx,
            self.decode.pools[:pools],
            lambda remote: [Source(remote.address(0, 0), self.readers)],
            model,
            timeout=timeout,
            tally=self.loaded,
        )

    def of(self, transfer: str, engine: str = "engine") -> Remote:
        return Remote(engine, transfer, self.remote.host, self.remote.port)

    def offer(
        self, blocks: list[int], tokens: int, skip: int = 0, first: int = 0, remote: Remote | None = None, prompt: str = ""
    ) -> None:
        remote = remote or self.remote
        self.receiver.fetch(Fetch("local " + remote.request, remote, blocks, skip, tokens, first, prompt))

    def received(self) -> tuple[set[str], set[int]]:
        """The requests that end next, and the blocks that failed."""
        found: tuple[set[str], set[int]] = wait_for(lambda: any(found := self.receiver.finished()) and found)
        return found

    def step(self, *chunks: Chunk, preempted: tuple[str, ...] = (), layers: int = 3) -> None:
        """Computes chunks, layer by layer, and ends the step."""
        self.sender.begin(chunks, preempted)
        for layer in range(layers):
            self.compute(layer, *chunks)
        self.sender.end()

    def compute(self, layer: int, *chunks: Chunk) -> None:
        """Writes a layer's K and V of all tokens of the chunks' blocks, and says that it is computed."""
        for arrays, computed in zip(self.prefill.arrays, self._computed, strict=True):
            there = arrays[layer].reshape(1024 // 32, -1)
            for chunk in chunks:
                there[chunk.blocks] = computed[layer].reshape(1024 // 32, -1)[chunk.blocks]
        self.sender.saved(layer)

    def spoil(self, blocks: list[int]) -> None:
        """Another request overwrites blocks of prefill."""
        for arrays in self.prefill.arrays:
            for array in arrays:
                array.reshape(1024 // 32, -1)[blocks] = -2.0

    def equal(self, blocks: list[int], first: int, tokens: int, source: list[int], begin: int = 0, layers: int = 3) -> bool:
        """Whether decode has so many tokens as the model computes them in the blocks ``source``, in the first ``layers`` layers."""
        mine, self.prefill.arrays = self.prefill.arrays, self._computed
        try:
            pairs = zip(self.decode.tokens(blocks, first, tokens), self.prefill.tokens(source, begin, tokens), strict=True)
            return all(np.array_equal(found.reshape(3, -1)[:layers], wanted.reshape(3, -1)[:layers]) for found, wanted in pairs)
        finally:
            self.prefill.arrays = mine

    def sender_ended(self) -> set[str]:
        """The requests that the sender returns next."""
        found: set[str] = wait_for(self.sender.finished)
        return found

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()
        self.decode.close()
        self.prefill.close()


def wait_for(look: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of ``look``. Time in which this process does not run does not count."""
    for _ in range(round(seconds / 0.005)):
        found = look()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it has not happened in time")


def pass_time(kept: dict[str, Any], one: Any, seconds: float = 20.0) -> float:
    """As if so long had passed for all that is kept. When ``one`` of it expires now."""
    for other in kept.values():
        other.expires -= seconds
    expires: float = one.expires
    return expires


@contextmanager
def two_sides(block: int = 32, seconds: float = 20.0, pools: int = 2, layers: int = 3) -> Iterator[Sides]:
    sides = Sides(block, seconds, pools, layers)
    try:
        yield sides
    finally:
        sides.close()


@contextmanager
def pushing(block: int = 32, seconds: float = 20.0, credits: int = 4, timeout: float = 20.0) -> Iterator[PushSides]:
    sides = PushSides(block, seconds, credits, timeout)
    try:
        yield sides
    finally:
        sides.close()
