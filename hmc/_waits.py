"""Waits for operations that other things may end early: a cancel, a deadline, a lost peer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hmc._core import Work
from hmc.errors import HmcError, HmcTimeoutError

__all__ = ["SLICE", "drained", "finish"]

SLICE = 0.05  # seconds of a wait, between looks at what may end it


def finish(work: Work, look: Callable[[], object], pause: Callable[[], float] = lambda: SLICE) -> None:
    """Waits until an operation has ended, and raises its error. Any thread.

    Calls ``look`` every ``pause()`` seconds meanwhile. What ``look`` raises ends the wait; the operation is then still in flight.
    """
    while True:
        try:
            work.wait(pause())
        except HmcTimeoutError:
            if work.done:
                work.wait()  # the operation has ended meanwhile, perhaps by a timeout of its own
                return
            look()
        else:
            return


def drained(work: Work) -> None:
    """Returns when an operation has ended, withdrawn or by itself, whatever its outcome. Any thread."""
    if not work.done and not work._withdraw():
        with contextlib.suppress(HmcError):
            work.wait()
