"""A transfer of a pool, as the user sees it, and the transfers of a pool that may still access its pages."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable

from hmc._deadline import Deadline
from hmc._threaded import ThreadedWork
from hmc.errors import ClosedError, HmcCancelledError
from hmc.kv._blocks import Blocks, Use

__all__ = ["Transfer", "Transfers"]

_MOMENT = 0.0005  # seconds between two looks whether a transfer that has drained is done


class Transfer(ThreadedWork):
    """A pull, or one side of a push, in flight: wait for it or await it. Any thread.

    It ends only once nothing of it can still be read or written, with an error where its pages are not to be used. Dropping it does
    not cancel it.
    """

    def __init__(self, session: str, what: str) -> None:
        super().__init__(f"the {what} of session {session!r}")
        self.session = session
        self._what = what
        self._drained = False  # under the lock of Transfers

    def _open(self) -> None:
        """What precedes the start."""

    def _unstarted(self) -> None:
        """Undoes ``_open``, if it has run, where the transfer could not start."""

    def _check_cancelled(self) -> None:
        if self._cancel.asked:
            raise HmcCancelledError(f"{self._described} was cancelled; its pages may have been written in part")

    def _lost(self, error: BaseException) -> BaseException:
        """The error that the receive of records ended with, as that of the transfer: a receive says nothing of pages."""
        reason = str(error).partition(": ")[2] or str(error)  # behind what HMC says of the receive
        found = type(error)(f"{self._described}; its pages may have been written in part: {reason}")
        found.__cause__ = error
        return found


class Transfers:
    """The transfers of a pool that may still access its pages. Any thread."""

    def __init__(self, blocks: Blocks, after: Callable[[], None]) -> None:
        self._blocks = blocks
        self._after = after  # runs when a transfer has ended, on its thread
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # entered by its lock: a signal's handler may raise in its own methods
        self._running: set[Transfer] = set()
        self._started: weakref.WeakSet[Transfer] = weakref.WeakSet()  # that run, or have run
        self._closed = False

    def run(self, transfer: Transfer, run: Callable[[], None], use: Use) -> None:
        """Runs it on a thread, which releases ``use`` when it has ended. Raises OutOfMemoryError, ClosedError.

        After an exception of a signal's handler it has not started, or it was cancelled and ends by itself.
        """
        try:
            use.kept = True
            with self._lock:
                if self._closed:
                    raise ClosedError("the pool is closed")
                self._running.add(transfer)
                self._started.add(transfer)
            transfer._open()
            transfer._start(functools.partial(self._main, transfer, run, use), f"hmc.kv {transfer._what}")
        except BaseException:
            if transfer._withdraw():
                with self._lock:
                    self._started.discard(transfer)
                self._end(transfer, use)
                transfer._unstarted()
                self._note_drained(transfer)  # a close() may wait for it already
            else:
                transfer.cancel()
            raise

    def _main(self, transfer: Transfer, run: Callable[[], None], use: Use) -> None:
        try:
            run()
        finally:
            self._end(transfer, use)
            self._after()
            self._note_drained(transfer)

    def _end(self, transfer: Transfer, use: Use) -> None:
        with self._lock:
            self._running.discard(transfer)
        self._blocks.release(use)

    def _note_drained(self, transfer: Transfer) -> None:
        with self._lock:
            transfer._drained = True
            self._changed.notify_all()

    def close(self) -> None:
        """Refuses further ones."""
        with self._lock:
            self._closed = True

    @property
    def running(self) -> list[Transfer]:
        with self._lock:
            return list(self._running)

    def wait(self, deadline: Deadline) -> Transfer | None:
        """Waits until each is ``done``, which a transfer is a moment after it has drained. Returns one that is not in time."""
        for transfer in self._unfinished():
            with self._lock:
                while not transfer._drained:
                    left = deadline.left()
                    if left == 0:
                        return transfer
                    self._changed.wait(left)
        for transfer in self._unfinished():
            while not transfer.done:
                if deadline.left() == 0:
                    return transfer
                time.sleep(_MOMENT)
        return None

    def _unfinished(self) -> list[Transfer]:
        with self._lock:
            return [transfer for transfer in self._started if not transfer.done]
