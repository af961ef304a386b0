"""What a soak does: the operations of an episode, made from its seed alone, and the bytes that they carry."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

WINDOW = 1 << 20
SIZES = [1, 7, 64, 1023, 4095, 4096, 4097, 65_536, 100_003, 262_147]
MESSAGES = [0, *SIZES, 1_048_579, 3_000_001]


@dataclass
class Op:
    """One operation from rank ``src`` to rank ``dst`` (a get: ``src`` is read)."""

    id: int
    kind: str  # put, blocks, get, send, notify, fenced, cancel
    src: int
    dst: int
    size: int
    door: str  # comm, member, peer
    tag: int = 0
    window: int = 0
    at: list[int] = field(default_factory=list)  # offsets in the target's window (a get: in the source's constants)
    source: list[int] = field(default_factory=list)  # offsets in the poster's outbox
    notify: int | bytes | None = None
    local: bool = False


@dataclass
class Batch:
    """What is posted together. ``event``: none, stop, kill or close, of rank ``victim``, ``delay`` seconds after the start."""

    ops: list[Op]
    collective: str
    asynchronous: bool
    event: str
    victim: int
    delay: float
    pause: float


def data(seed: int, number: int, size: int) -> Bytes:
    """Bytes that no other operation has."""
    return np.random.Generator(np.random.SFC64([seed, number, size])).integers(0, 256, size, dtype=np.uint8)


class Space:
    """Hands out parts of a window that do not overlap, with gaps between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.used = rng, 0

    def take(self, size: int) -> int | None:
        at = self.used + self.rng.randrange(0, 97)
        if at + size > WINDOW:
            return None
        self.used = at + size
        return at


class Plan:
    """An episode: the number of ranks and its batches."""

    def __init__(self, seed: int, episode: int, transport: str, without: str = "") -> None:
        self.rng = random.Random(f"{seed}/{episode}/{transport}")
        self.seed = self.rng.randrange(1 << 30)  # of the data
        self.ranks = self.rng.choice([2, 2, 3, 4])
        self.numbers = iter(range(1, 1 << 30))
        alive = list(range(self.ranks))
        self.batches: list[Batch] = []
        calm = self.rng.randrange(3, 8)
        for _ in range(calm):
            self.batches.append(self._batch(alive, self.rng.choice(["none", "none", "stop"])))
        last = self._batch(alive, self.rng.choice(["kill", "kill", "close", "stop"]))
        self.batches.append(last)
        if last.event in ("kill", "close"):
            alive.remove(last.victim)
            if len(alive) > 1:
                self.batches += [self._batch(alive, self.rng.choice(["none", "stop"]), whole=False) for _ in range(2)]
        for batch in self.batches:
            batch.ops = [op for op in batch.ops if op.kind not in without.split(",")]

    def _batch(self, alive: list[int], event: str, whole: bool = True) -> Batch:
        rng = self.rng
        windows = {(rank, window): Space(rng) for rank in alive for window in (0, 1)}
        outboxes = {rank: Space(rng) for rank in alive}
        ops = []
        for _ in range(rng.randrange(3, 25)):
            src, dst = rng.sample(alive, 2)
            kind = rng.choice(["put", "put", "put", "blocks", "get", "send", "send", "send", "notify", "fenced", "cancel"])
            op = Op(next(self.numbers), kind, src, dst, rng.choice(SIZES), rng.choice(["comm", "member", "peer"]))
            if kind in ("put", "blocks", "fenced"):
                op.window = rng.randrange(2)
                count = rng.randrange(2, 40) if kind == "blocks" else 1
                op.size = min(op.size, 8192) if kind == "blocks" else op.size
                for _ in range(count):
                    at, source = windows[dst, op.window].take(op.size), outboxes[src].take(op.size)
                    if at is None or source is None:
                        break
                    op.at.append(at)
                    op.source.append(source)
                if not op.at:
                    continue
                # Arrives where nobody waits for it by the door of a Peer.
                if kind != "fenced" and op.door != "peer":
                    op.notify = rng.choice([None, op.id, op.id.to_bytes(8, "little")])
                op.local = isinstance(op.notify, int) and rng.random() < 0.3
            elif kind == "get":
                source = outboxes[dst].take(op.size)
                if source is None:
                    continue
                op.at, op.source = [rng.randrange(0, WINDOW - op.size)], [source]
            elif kind in ("send", "cancel"):
                op.size = rng.choice(MESSAGES)
                op.tag = rng.randrange(3) if kind == "send" else 1000 + op.id
            else:
                op.notify, op.door = rng.choice([op.id, op.id.to_bytes(8, "little")]), rng.choice(["comm", "member"])
            if kind == "fenced":
                op.tag = 1_000_000 + op.id
            ops.append(op)
        collective = rng.choice(["", "", "all_to_all", "all_to_all_v", "exchange_bytes", "barrier"]) if whole else ""
        return Batch(
            ops,
            collective,
            rng.random() < 0.3,
            event,
            rng.choice(alive),
            rng.choice([0, 0.002, 0.01, 0.05]),
            rng.uniform(0.05, 0.7),
        )


def different(got: Bytes, wanted: Bytes) -> str:
    """Where two arrays differ; empty when they do not."""
    if got.size != wanted.size:
        return f"{got.size} bytes in place of {wanted.size}"
    places = np.flatnonzero(got != wanted)
    return f"{places.size} of {got.size} bytes differ, from {places[0]} to {places[-1]}" if places.size else ""
