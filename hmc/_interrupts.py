"""Steps that a KeyboardInterrupt does not separate from the record that they were done.

The interpreter runs signal handlers between bytecodes: also between the return of a call and the statement that uses its result.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

__all__ = ["delayed", "record", "take"]


@contextlib.contextmanager
def delayed() -> Iterator[None]:
    """Runs the handler of a SIGINT that comes in the body after it. For short bodies."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no handler runs in this thread
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


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
