"""Work that a thread carries out: its user waits for it, awaits it, or cancels it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import threading
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from hmc._deadline import Deadline
from hmc._process import Owned
from hmc._workers import run_on_thread
from hmc.errors import HmcTimeoutError

__all__ = ["ThreadedWork"]


def _main(begun: threading.Lock, future: Future[None], run: Callable[[], None], ended: Callable[[], None]) -> None:
    if not begun.acquire(blocking=False):
        return  # withdrawn
    try:
        run()
    except BaseException as error:
        del run  # the error's traceback keeps this frame
        _clear_frames(error)
        future.set_exception(error)
    else:
        future.set_result(None)
    ended()
    del future, ended


def _clear_frames(error: BaseException) -> None:
    """Clears the variables in the tracebacks of an error and of its causes: they refer to the work, which keeps the error.

    Those of enclosing functions stay.
    """
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            todo += [one.__cause__, one.__context__]


def _copy(error: BaseException) -> BaseException:
    """A copy of a work's error, to raise: the traceback takes in the caller's frames, which refer to the work."""
    try:
        found = copy.copy(error)
    except Exception:  # an exception type that cannot be copied
        return error
    if type(found) is not type(error) or str(found) != str(error):  # one that makes its text of its arguments
        return error
    if "__notes__" in found.__dict__:  # the original's list, from Python 3.11 on
        found.__dict__["__notes__"] = list(found.__dict__["__notes__"])
    found.__cause__, found.__context__ = error.__cause__, error.__context__
    found.__suppress_context__ = error.__suppress_context__
    return found.with_traceback(error.__traceback__)


class Cancel:
    """Whether a work was asked to end. No Event: an exception of a signal's handler within set() leaves an Event's lock taken."""

    asked = False


class ThreadedWork(Owned):
    """Base of transfers. It ends only once nothing of it can still be read or written. Any thread.

    Dropping it does not cancel it. In a child of fork() its calls raise ClosedError.
    """

    def __init__(self, described: str) -> None:
        super().__init__()
        self._described = described
        self._future: Future[None] = Future()
        self._cancel = Cancel()
        self._begun = threading.Lock()  # taken once: by the thread, which then runs, or by ``_withdraw``

    def _start(self, run: Callable[[], None], thread: str) -> None:
        """Once. ``run`` looks at ``_cancel``. OutOfMemoryError: the system refused a thread of this name.

        What raises in ``run`` is no function in a function that refers to the work: the traceback would keep both.

        A signal's handler may raise here although the thread has started: ``_withdraw`` tells.
        """
        run_on_thread(functools.partial(_main, self._begun, self._future, run, self._ended), thread)

    def _withdraw(self) -> bool:
        """After an exception of ``_start``: False if the thread runs, or has run; True if it never does."""
        return self._begun.acquire(blocking=False)

    def _ended(self) -> None:
        """Called on its thread when it has ended."""

    @property
    def done(self) -> bool:
        """True once it has ended, with whatever outcome."""
        return self._future.done()

    def error(self) -> BaseException | None:
        """The exception of work that failed, else None (also while it is in flight)."""
        return self._future.exception() if self._future.done() else None

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended and raises its error, or HmcTimeoutError after ``timeout`` seconds: it goes on."""
        self._check_process()
        try:
            self._future.exception(Deadline(timeout).left())
        except (FutureTimeoutError, TimeoutError):
            if not self._future.done():  # else it ended just now
                raise HmcTimeoutError(f"{self._described} has not ended within {timeout} s; it goes on: cancel() ends it") from None
        self._raise_error()

    def _raise_error(self) -> None:
        """Raises a copy of the error of work that failed. Returns where it has none."""
        if (error := self.error()) is not None:
            raise _copy(error)

    def cancel(self) -> None:
        """Asks it to end, with HmcCancelledError, once what is in flight has drained. Returns at once; idempotent."""
        self._check_process()
        self._cancel.asked = True

    def __await__(self) -> Generator[object, None, None]:
        """Awaits the end. A task that is cancelled meanwhile cancels the work, and ends when the work has ended."""
        self._check_process()
        return self._awaited().__await__()

    async def _awaited(self) -> None:
        future = asyncio.wrap_future(self._future)
        try:
            await asyncio.wait([future])  # does not cancel the future, and does not raise its error here
        except asyncio.CancelledError:
            self.cancel()
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):  # GeneratorExit: the loop was closed
                    await asyncio.wait([future])
            future.exception()  # it was seen
            raise
        future.exception()  # CancelledError where the loop's end has cancelled the future
        self._raise_error()
