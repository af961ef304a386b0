"""Emulated links: when a message would be over, written where the processes of the replay read it."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

import numpy as np

__all__ = ["Links", "sleep_until"]

_KEPT = 64  # messages of a rank whose ends are kept: far more than a receiver is behind


def sleep_until(when: float, since: float | None = None) -> float:
    """Sleeps until the monotonic time ``when``. Returns by how many seconds the caller is later than both times."""
    now = time.monotonic()
    if now < when:
        time.sleep(when - now)
        return 0.0
    return now - max(when, since or when)


class Links:
    """NICs, each of which carries one message at a time in one direction.

    The ranks are processes of one machine. They share its monotonic clock and a file, which has a time for each NIC until which it
    is busy, and the ends of the last messages of each rank.
    """

    def __init__(self, file: Path, ranks: int) -> None:
        self._lock = file.open("r+b")
        self._times = np.memmap(file, np.float64, "r+", shape=(ranks, 1 + _KEPT))

    @staticmethod
    def create(file: Path, ranks: int) -> None:
        """Idle NICs, as many as ranks."""
        file.write_bytes(bytes(8 * ranks * (1 + _KEPT)))

    def begin(self, rank: int, nic: int, number: int, seconds: float) -> float:
        """Books ``seconds`` of NIC ``nic`` for message ``number`` of ``rank``, before it is sent. Returns its end."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            end = max(time.monotonic(), float(self._times[nic, 0])) + seconds
            self._times[nic, 0] = end
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
        self._times[rank, 1 + number % _KEPT] = end
        return float(end)

    def end(self, sender: int, number: int) -> float:
        """Of a message that has been received."""
        return float(self._times[sender, 1 + number % _KEPT])
