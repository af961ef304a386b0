"""A transfer of a pool, as the user sees it."""

from __future__ import annotations

import threading

from hmc._threaded import ThreadedWork
from hmc.errors import HmcCancelledError

__all__ = ["Transfer"]


class Transfer(ThreadedWork):
    """A pull, or one side of a push, in flight: wait for it or await it. Any thread.

    It ends only once nothing of it can still be read or written, with an error where its pages are not to be used. Dropping it does
    not cancel it.
    """

    def __init__(self, session: str, what: str) -> None:
        super().__init__(f"the {what} of session {session!r}")
        self.session = session
        self._what = what
        self._drained = threading.Event()

    def _unstarted(self) -> None:
        """Undoes the constructor where the transfer could not start."""

    def _check_cancelled(self) -> None:
        if self._cancel.is_set():
            raise HmcCancelledError(f"{self._described} was cancelled; its pages may have been written in part")
