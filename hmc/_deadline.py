"""One deadline for the several waits of a call."""

from __future__ import annotations

import math
import time

from hmc._arguments import seconds

__all__ = ["Deadline"]

_MOST = 1e9  # seconds; the clocks of locks overflow at ten times as many


class Deadline:
    """``timeout`` seconds from now; None, or more than 30 years: never. Immutable; any thread.

    TypeError for what is no number, InvalidArgumentError below 0 and for NaN.
    """

    def __init__(self, timeout: float | None) -> None:
        limit = math.inf if timeout is None else seconds("timeout", timeout)
        self.timeout = timeout
        self._end = math.inf if limit > _MOST else time.monotonic() + limit

    def left(self) -> float | None:
        """Seconds, at least 0; None: no limit."""
        return None if self._end == math.inf else max(0.0, self._end - time.monotonic())
