"""Which session has which blocks of a pool. Blocks that a lease or a transfer uses are not given to another session."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hmc.errors import InvalidArgumentError, OutOfMemoryError

__all__ = ["Blocks", "Used"]


@dataclass
class Used:
    """A session's blocks, and how many leases and transfers use them."""

    name: str
    blocks: list[int] = field(default_factory=list)
    users: int = 0
    freed: bool = False


class Blocks:
    """The allocator. Any thread."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = deque(range(count))
        self._sessions: dict[str, Used] = {}
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
            self._sessions.setdefault(session, Used(session)).blocks += blocks
            return blocks

    def of(self, used: Used) -> list[int]:
        """The blocks of a session that is in use, also where another one has its name by now."""
        with self._lock:
            if not used.blocks:
                raise InvalidArgumentError(f"session {used.name!r} has no blocks here: allocate() them, or pass blocks=")
            return list(used.blocks)

    def use(self, session: str) -> Used:
        """Keeps the session's blocks from being given away until ``release``."""
        with self._lock:
            found = self._sessions.setdefault(session, Used(session))
            found.users += 1
            return found

    def hold(self, used: Used) -> None:
        """As ``use``, of what the caller uses already."""
        with self._lock:
            used.users += 1

    def release(self, used: Used) -> None:
        with self._lock:
            used.users -= 1
            if used.freed and used.users == 0:
                self._give_back(used)
            elif used.users == 0 and not used.blocks:
                self._sessions.pop(used.name, None)

    @contextmanager
    def claim(self, session: str) -> Iterator[Used]:
        """As ``use``; an error in the body releases it. The body looks blocks up, which no other session gets meanwhile."""
        used = self.use(session)
        try:
            yield used
        except BaseException:
            self.release(used)
            raise

    @contextmanager
    def using(self, session: str) -> Iterator[Used]:
        """As ``use``, for the time of the body."""
        used = self.use(session)
        try:
            yield used
        finally:
            self.release(used)

    def free(self, session: str) -> None:
        """Gives the session's blocks back as soon as nothing uses them. Idempotent."""
        with self._lock:
            found = self._sessions.get(session)
            if found is not None:
                self._free_one(found)

    def free_used(self, used: Used) -> None:
        """As ``free``, of the session that was used, and not of a later one with its name."""
        with self._lock:
            self._free_one(used)

    def _free_one(self, session: Used) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
        session.freed = True
        if session.users == 0:
            self._give_back(session)

    def _give_back(self, session: Used) -> None:
        self._free.extend(session.blocks)
        session.blocks = []
