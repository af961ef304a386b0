"""A clock for expiries that other processes put off: it stops while this process is paused."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hmc._process import start_thread
from hmc.errors import HmcTimeoutError

__all__ = ["RunningClock"]

_TICK = 0.1  # seconds
# Seconds between two ticks, beyond which this process did not run: messages may have arrived that were not taken.
_PAUSE = 0.5

Found = TypeVar("Found")


class RunningClock:
    """Seconds in which this process ran. Time in which it is stopped, or one thread keeps all others waiting, does not count.

    ``timed``: whether anything is timed now. While nothing is, all time counts and no thread wakes. Any thread.
    """

    def __init__(self, timed: Callable[[], bool]) -> None:
        self._timed = timed
        self._lock = threading.Lock()
        self._ticked = time.monotonic()
        self._paused = 0.0
        self._ticks = self._closed = False
        self._woken = threading.Event()
        start_thread(self._tick_on, "hmc.vllm clock")

    def now(self) -> float:
        """Seconds, from an arbitrary point on. Never decreases."""
        with self._lock:
            most = self._ticked + _PAUSE if self._ticks else math.inf
            return min(time.monotonic(), most) - self._paused

    def wake(self) -> None:
        """Something is timed from now on."""
        self._woken.set()

    def patiently(self, wait: Callable[[float], Found], seconds: float, over: Callable[[], bool]) -> Found:
        """What ``wait(seconds)`` returns. Repeats one that timed out because of a pause, until ``seconds`` are over on this clock.

        ``over``: whether the operation has ended: then another ``wait`` returns its result or raises its error.
        """
        until, left = self.now() + seconds, seconds
        while True:
            try:
                return wait(left)
            except HmcTimeoutError:
                left = until - self.now()
                if over():
                    return wait(0.0)
                if left <= 0:
                    raise

    def close(self) -> None:
        """Ends its thread: from then on all time counts. Idempotent."""
        self._closed = True
        with self._lock:
            self._ticks = False
        self._woken.set()

    def _tick_on(self) -> None:
        while True:
            self._woken.clear()
            if self._closed:
                return
            timed = self._timed()
            with self._lock:
                now = time.monotonic()
                if self._ticks:
                    self._paused += max(0.0, now - self._ticked - _PAUSE)
                self._ticked, self._ticks = now, timed and not self._closed
            self._woken.wait(_TICK if timed else None)
