"""A pull, as the user sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError

from hmc._deadline import Deadline
from hmc._threaded import Cancel, ThreadedWork
from hmc.errors import HmcTimeoutError

__all__ = ["Pull"]


class Pull(ThreadedWork):
    """A pull in flight: wait for it or await it. Any thread.

    It ends only once nothing of it can still be written, unless its source is stopped: then into memory that nothing uses any more.
    Dropping it does not cancel it. Until commit() the target is unchanged, whatever the outcome.
    """

    def __init__(self) -> None:
        super().__init__("the pull")

    def _begin(self, run: Callable[[Cancel], None]) -> None:
        """Once. After an exception ``_withdraw`` tells whether it runs all the same."""
        self._start(functools.partial(run, self._cancel), "hmc.weights pull")

    def drained(self, timeout: float | None = None) -> None:
        """Waits until it has ended, with whatever outcome. HmcTimeoutError after ``timeout`` seconds."""
        try:
            self._future.exception(Deadline(timeout).left())
        except (FutureTimeoutError, TimeoutError):
            raise HmcTimeoutError(f"{self._described} has not ended within {timeout} s") from None
