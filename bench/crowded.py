"""Messages beside threads that compute: what waiting and callbacks take when every processor is busy.

    python bench/crowded.py [--busy 0 1 2] [--seconds 3] [--json FILE]

For each number of processes that compute without end:
- round trip: 8 bytes to another process and back, by threads that wait in recv();
- callback: from the send of 8 bytes to the call of the receiver's callback, while no thread waits. Messages are 0 to 2 ms apart.
- behind: the same, 0 to 1 ms after a thread of the receiver has sent 64 MiB, and waited for that.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import hmc

PING, PONG, STAMP, GO, LARGE = 1, 2, 3, 4, 5
LARGE_BYTES = 64 << 20


def other_process(address: str) -> None:
    """Answers round trips, and sends stamps."""
    with hmc.Context(transports="shm") as ctx:
        peer = ctx.connect(address, timeout=30)
        word = np.zeros(1, np.int64)
        count = np.zeros(1, np.int64)
        peer.recv(count, tag=GO)
        while word[0] >= 0:
            peer.recv(word, tag=PING)
            peer.send(word, tag=PONG)
        rng = random.Random(1)
        for _ in range(int(count[0])):
            time.sleep(rng.uniform(0, 0.002))
            peer.send(np.array([time.monotonic_ns()], np.int64), tag=STAMP)
        large = np.zeros(LARGE_BYTES, np.uint8)
        peer.recv(count, tag=GO)
        for _ in range(int(count[0])):
            peer.recv(large, tag=LARGE)
            pause = time.perf_counter() + rng.uniform(0, 0.001)
            while time.perf_counter() < pause:
                pass
            peer.send(np.array([time.monotonic_ns()], np.int64), tag=STAMP)
        peer.recv(word, tag=GO)


def round_trips(peer: hmc.Peer, seconds: float) -> list[float]:
    word, times = np.zeros(1, np.int64), []
    end = time.perf_counter() + seconds
    while word[0] >= 0:
        before = time.perf_counter()
        word[0] = -1 if before > end else 0
        peer.send(word, tag=PING)
        peer.recv(word, tag=PONG)
        times.append(time.perf_counter() - before)
    return times


class Stamps:
    """Receives stamps by callbacks, and notes how old they are."""

    def __init__(self, peer: hmc.Peer, count: int) -> None:
        self.ages: list[float] = []
        self.all = threading.Event()
        self._peer = peer
        self._count = count
        for _ in range(min(4, count)):
            self._receive()

    def _receive(self) -> None:
        word = np.zeros(1, np.int64)
        self._peer.irecv(word, tag=STAMP).add_done_callback(lambda _: self._arrived(word))

    def _arrived(self, word: Any) -> None:
        self.ages.append((time.monotonic_ns() - int(word[0])) / 1e9)
        if len(self.ages) == self._count:
            self.all.set()
        elif len(self.ages) + 4 <= self._count:
            self._receive()


def behind(peer: hmc.Peer, count: int) -> list[float]:
    """The ages of stamps that follow a large message, which this thread has sent."""
    large, ages = np.ones(LARGE_BYTES, np.uint8), []
    peer.send(np.array([count], np.int64), tag=GO)
    for _ in range(count):
        stamps = Stamps(peer, 1)
        peer.send(large, tag=LARGE, timeout=60)
        if not stamps.all.wait(60):
            raise RuntimeError("a callback did not run")
        ages += stamps.ages
    return ages


def measured(busy: int, seconds: float) -> list[dict[str, Any]]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        with hmc.Context(transports="shm") as ctx:
            other = subprocess.Popen([sys.executable, __file__, "--other", ctx.addresses[0]])
            peer = ctx.accept(timeout=30)
            count = max(8, int(seconds * 1000))
            peer.send(np.array([count], np.int64), tag=GO)
            trips = round_trips(peer, seconds)
            stamps = Stamps(peer, count)
            if not stamps.all.wait(60 + 4 * seconds):
                raise RuntimeError(f"{len(stamps.ages)} of {count} callbacks ran")
            ages = behind(peer, max(8, int(seconds * 100)))
            peer.send(np.zeros(1, np.int64), tag=GO)
            other.wait(30)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    return [
        {
            "what": what,
            "busy": busy,
            "count": len(times),
            "mean": float(np.mean(times)),
            **{f"p{percent}": float(np.percentile(times, percent)) for percent in (50, 90, 99)},
        }
        for what, times in (("round trip", trips), ("callback", stamps.ages), ("behind", ages))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="processes that compute")
    parser.add_argument("--seconds", type=float, default=3.0, help="of round trips, and about of stamps")
    parser.add_argument("--json", type=Path, help="also writes every figure to this file")
    parser.add_argument("--other", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.other:
        other_process(options.other)
        return
    points = [point for busy in options.busy for point in measured(busy, options.seconds)]
    for point in points:
        figures = "  ".join(f"{name} {point[name] * 1e6:8.1f}" for name in ("mean", "p50", "p90", "p99"))
        print(f"{point['busy']} busy  {point['what']:10}  {figures} us  of {point['count']}")
    if options.json is not None:
        options.json.write_text(json.dumps(points, indent=1))


if __name__ == "__main__":
    main()
