"""One deadline for the several waits of a call."""

from __future__ import annotations

import math
import time

from hmc.errors import InvalidArgumentError

_MOST = 1e9  # seconds; the clocks of locks overflow at ten times as many


class Deadline:
    """``timeout`` seconds from now; None, or more than 30 years: never. Immutable; any thread."""

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise InvalidArgumentError(f"timeout is {timeout}; it is a number of seconds from 0 on, or None")
        self.timeout = timeout
        self._end = math.inf if timeout is None or timeout > _MOST else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds, at least 0; None: no limit."""
        return None if self._end == math.inf else max(0.0, self._end - time.monotonic())
