"""What a worker has loaded and lent since the last look, for vLLM's statistics."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["COUNTS", "LISTS", "Tally", "empty"]

# Of each request that was loaded: seconds, bytes that were read, and tokens.
LISTS = ("load_seconds", "load_bytes", "load_tokens")
# Loads that failed, requests that were lent and whose readers have ended, and requests that no reader has read in time.
COUNTS = ("loads_failed", "requests_lent", "requests_expired")


def empty() -> dict[str, Any]:
    """Nothing yet. Names of COUNTS are numbers, those of LISTS lists of numbers."""
    return {**{name: [] for name in LISTS}, **dict.fromkeys(COUNTS, 0)}


class Tally:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found = empty()

    def loaded(self, seconds: float, nbytes: int, tokens: int) -> None:
        """A request was loaded."""
        with self._lock:
            for name, value in zip(LISTS, (seconds, nbytes, tokens), strict=True):
                self._found[name].append(value)

    def count(self, name: str) -> None:
        """Adds one to a name of COUNTS."""
        with self._lock:
            self._found[name] += 1

    def take(self) -> dict[str, Any] | None:
        """What was found since the last call; None: nothing."""
        with self._lock:
            if self._found == empty():
                return None
            found, self._found = self._found, empty()
        return found
