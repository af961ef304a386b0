"""Steps that a KeyboardInterrupt does not separate from the record that they were done.

The interpreter runs signal handlers between bytecodes: also between the return of a call and the statement that uses its result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["record", "take"]


def record(done: list[Any], step: Callable[[Any], Any], argument: Any) -> None:
    """Appends ``step(argument)`` to ``done``. Where both are C functions, an interrupt comes before or after, not between.

    ``step``: a function of C or a functools.partial of one.
    """
    done.extend(map(step, (argument,)))


def take(lock: Any, timeout: float | None, taken: list[bool]) -> bool:
    """Acquires a lock within ``timeout`` seconds, and records in ``taken``, a new list, whether it has.

    The caller releases the lock where ``taken == [True]``, whatever was raised.
    """
    record(taken, partial(lock.acquire, True), -1 if timeout is None else timeout)
    return taken == [True]
