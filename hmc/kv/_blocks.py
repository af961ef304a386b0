"""Which session has which blocks of a pool. Blocks that a lease or a transfer uses are not given to another session."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hmc.errors import InvalidArgumentError, OutOfMemoryError

__all__ = ["Blocks"]


@dataclass
class _Session:
    name: str
    blocks: list[int] = field(default_factory=list)
    users: int = 0
    freed: bool = False


class Blocks:
    """The allocator. Any thread."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = deque(range(count))
        self._sessions: dict[str, _Session] = {}
        self.count = count

    @property
    def free_count(self) -> int:
        with self._lock:
            return len(self._free)

    @property
    def sessions(self) -> list[str]:
        with self._lock:
            return list(self._sessions)

    def allocate(self, session: str, count: int) -> list[int]:
        with self._lock:
            if count > len(self._free):
                raise OutOfMemoryError(
                    f"session {session!r} asked for {count} blocks; {len(self._free)} of {self.count} are free: free sessions first"
                )
            blocks = [self._free.popleft() for _ in range(count)]
            self._sessions.setdefault(session, _Session(session)).blocks += blocks
            return blocks

    def of(self, session: str) -> list[int]:
        with self._lock:
            found = self._sessions.get(session)
            if found is None or not found.blocks:
                raise InvalidArgumentError(f"session {session!r} has no blocks here: allocate() them, or pass blocks=")
            return list(found.blocks)

    def use(self, session: str) -> _Session:
        """Keeps the session's blocks from being given away until ``release``."""
        with self._lock:
            found = self._sessions.setdefault(session, _Session(session))
            found.users += 1
            return found

    def release(self, used: _Session) -> None:
        with self._lock:
            used.users -= 1
            if used.freed and used.users == 0:
                self._give_back(used)
            elif used.users == 0 and not used.blocks:
                self._sessions.pop(used.name, None)

    @contextmanager
    def used(self, session: str) -> Iterator[None]:
        one = self.use(session)
        try:
            yield
        finally:
            self.release(one)

    def free(self, session: str) -> None:
        with self._lock:
            found = self._sessions.pop(session, None)
            if found is None:
                return
            found.freed = True
            if found.users == 0:
                self._give_back(found)

    def _give_back(self, session: _Session) -> None:
        self._free.extend(session.blocks)
        session.blocks = []
