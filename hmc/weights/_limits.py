"""What ends a pull early, and waiting for its operations until then."""

from __future__ import annotations

import contextlib
import threading

from hmc._core import Work
from hmc._deadline import Deadline
from hmc._threaded import Cancel
from hmc._waits import SLICE, finish
from hmc.errors import HmcCancelledError, HmcError, HmcTimeoutError

__all__ = ["Limits", "drain"]

_PATIENCE = 1.0  # seconds, for reads that cannot be withdrawn


class Limits:
    """What ends a pull early: the user's cancel, the deadline, an error of another worker."""

    def __init__(self, cancel: Cancel, deadline: Deadline) -> None:
        self._cancel = cancel
        self._deadline = deadline
        self.failed = threading.Event()

    def left(self, most: float) -> float:
        left = self._deadline.left()
        return most if left is None else min(most, left)

    def check(self) -> None:
        if self._cancel.asked:
            raise HmcCancelledError("the pull was cancelled; the target is unchanged")
        if self._deadline.left() == 0:
            raise HmcTimeoutError("the pull has not ended by its deadline; it was stopped, and the target is unchanged")
        if self.failed.is_set():
            raise HmcCancelledError("another source of the pull has failed")

    def over(self) -> bool:
        """Whether check() raises."""
        return self._cancel.asked or self._deadline.left() == 0 or self.failed.is_set()

    def finish(self, work: Work) -> None:
        """Waits for an operation. Raises its error, or what ends the pull."""
        finish(work, self.check, self._pause)

    def _pause(self) -> float:
        return self.left(SLICE)


def drain(works: list[Work], limits: Limits) -> bool:
    """True when the operations have ended, withdrawn or by themselves, whatever their outcome.

    False: the pull is over, and one is still in flight a second later. It may write until its peer goes on or is lost.
    """
    patience = Deadline(_PATIENCE)
    for work in works:
        while not work.done and not work._withdraw():
            with contextlib.suppress(HmcError):
                work.wait(SLICE)
            if patience.left() == 0 and limits.over():
                return False
    return True
