"""Which session has which blocks of a pool. Blocks that a lease or a transfer uses are not given to another session.

A signal's handler may raise in any of these functions: at their beginning, and after each call of a function. What belongs together
has no call in between.
"""

from __future__ import annotations

import array
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc._arguments import wholes
from hmc.errors import InvalidArgumentError, OutOfMemoryError

__all__ = ["Blocks", "Session", "Use", "numbers"]


def numbers(blocks: Any, most: int, end: int) -> NDArray[np.uint64]:
    """A copy of 1 to ``most`` numbers of blocks, each below ``end``: a sequence of ints, or an array of one dimension."""
    listed: NDArray[np.uint64]
    plain: NDArray[np.uint64] | None = _core.block_numbers(blocks, most, end)  # None: converted, or refused, below
    if plain is not None:
        return plain
    if isinstance(blocks, np.ndarray) and blocks.ndim == 1 and blocks.dtype.kind in "iu":
        listed = np.array(blocks, np.uint64)  # before the check: another thread may change them. Negative ones become too large
    elif type(blocks) is list and set(map(type, blocks)) == {int}:
        listed = np.zeros(0, np.uint64)  # too many, or a number out of range: refused below
    else:  # wholes() says what is wrong
        listed = np.array(array.array("q", wholes("blocks", blocks)), np.uint64)
    if not 0 < len(listed) <= most or listed.max() >= end:
        raise InvalidArgumentError(f"blocks are 1 to {most} numbers below {end}")
    return listed


@dataclass
class Session:
    """The blocks of a session, and how many leases and transfers use them. Under the lock of Blocks."""

    name: str
    blocks: list[int] = field(default_factory=list)
    users: int = 0
    freed: bool = False  # the blocks are given back with the last use; another session may have the name


class Use:
    """One use of a session's blocks, from ``Blocks.use`` to ``Blocks.release``."""

    def __init__(self) -> None:
        self.session: Session | None = None  # stays after the release
        self.held = False
        self.kept = False  # a lease or a transfer has it, and releases it


class Blocks:
    """The allocator. Any thread."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = deque(range(count))
        self._sessions: dict[str, Session] = {}
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
        """Gives a session ``count`` more blocks, and returns these. OutOfMemoryError where fewer are free."""
        with self._lock:
            if count > len(self._free):
                raise OutOfMemoryError(
                    f"session {session!r} asked for {count} blocks; {len(self._free)} of {self.count} are free: free sessions first"
                )
            mine = self._sessions.setdefault(session, Session(session)).blocks
            mine.extend(islice(iter(self._free.popleft, None), count))  # one call: no block is lost in between
            return mine[-count:]

    def of(self, session: Session) -> list[int]:
        """The blocks of a session that is in use, also where another one has its name by now. InvalidArgumentError: it has none."""
        with self._lock:
            if not session.blocks:
                raise InvalidArgumentError(f"session {session.name!r} has no blocks here: allocate() them, or pass blocks=")
            return list(session.blocks)

    def use(self, name: str, use: Use) -> Session:
        """Keeps the blocks of the session of that name from being given away until ``release``."""
        with self._lock:
            found = use.session = self._sessions.setdefault(name, Session(name))
            found.users += 1
            use.held = True
            return found

    def release(self, use: Use) -> None:
        """Idempotent, also where ``use`` has not begun."""
        with self._lock:
            session = use.session
            if session is None or not use.held:
                return
            use.held = False
            session.users -= 1
            if session.users == 0 and session.freed:
                blocks, session.blocks = session.blocks, []
                self._free.extend(blocks)
            elif session.users == 0 and not session.blocks:
                self._sessions.pop(session.name, None)

    def abandon(self, use: Use) -> None:
        """After an error of what was to use the blocks: releases them, unless a lease or a transfer does."""
        if not use.kept:
            self.release(use)

    def free(self, session: str) -> None:
        """Gives the session's blocks back as soon as nothing uses them. Idempotent."""
        with self._lock:
            found = self._sessions.get(session)
            if found is not None:
                self._free_one(found)

    def free_session(self, session: Session) -> None:
        """As ``free``, of this session, and not of a later one with its name."""
        with self._lock:
            self._free_one(session)

    def _free_one(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
        session.freed = True
        if session.users == 0:
            blocks, session.blocks = session.blocks, []
            self._free.extend(blocks)
