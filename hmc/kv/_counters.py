"""Counters of a pool and of its sessions."""

from __future__ import annotations

import threading

__all__ = ["Counters"]

_SESSIONS = 4096


class Counters:
    """Counts by session, for the last 4096 sessions, and in total. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[str, dict[str, int]] = {}
        self._totals: dict[str, int] = {}

    def add(self, session: str, **amounts: int) -> None:
        """Adds to counters by name."""
        with self._lock:
            mine = self._sessions.setdefault(session, {})
            for name, amount in amounts.items():
                if amount:
                    mine[name] = mine.get(name, 0) + int(amount)
                    self._totals[name] = self._totals.get(name, 0) + int(amount)
            while len(self._sessions) > _SESSIONS:
                del self._sessions[next(iter(self._sessions))]

    def of(self, session: str) -> dict[str, int]:
        """The counters of a session."""
        with self._lock:
            return dict(self._sessions.get(session, {}))

    @property
    def totals(self) -> dict[str, int]:
        """The counters of all sessions together."""
        with self._lock:
            return dict(self._totals)
