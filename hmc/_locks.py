"""Locks that an exception of a signal's handler does not leave taken."""

from __future__ import annotations

from typing import Any

__all__ = ["take"]


def take(lock: Any, timeout: float | None, taken: list[bool]) -> bool:
    """Acquires a lock within ``timeout`` seconds, and says in ``taken`` whether it has.

    Both in one call, which no Python code is part of: a handler of a signal may raise before or behind it. The caller releases the
    lock where ``taken == [True]``.
    """
    taken.extend(map(lock.acquire, (True,), (-1 if timeout is None else timeout,)))
    return taken == [True]
