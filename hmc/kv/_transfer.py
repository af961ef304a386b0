"""A transfer of a pool, as the user sees it: waits, awaits, cancels."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from hmc.errors import HmcCancelledError, HmcTimeoutError
from hmc.kv._process import Owned, start_thread

__all__ = ["Transfer"]


class Transfer(Owned):
    """A pull, or one side of a push, in flight: wait for it or await it. Any thread.

    It ends only once nothing of it can still be read or written, with an error where its pages are not to be used. Dropping it does
    not cancel it.
    """

    def __init__(self, session: str, what: str) -> None:
        super().__init__()
        self.session = session
        self._what = what
        self._future: Future[None] = Future()
        self._cancel = threading.Event()
        self._drained = threading.Event()

    def _start(self, run: Callable[[], None]) -> None:
        start_thread(lambda: self._main(run), f"hmc.kv {self._what}")

    def _unstarted(self) -> None:
        """Undoes the constructor where the transfer could not start."""

    def _main(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(None)

    def _check_cancelled(self) -> None:
        if self._cancel.is_set():
            raise HmcCancelledError(
                f"the {self._what} of session {self.session!r} was cancelled; its pages may have been written in part"
            )

    @property
    def done(self) -> bool:
        """True once it has ended, with whatever outcome."""
        return self._future.done()

    def error(self) -> BaseException | None:
        """The exception of a transfer that failed, else None (also while it is in flight)."""
        return self._future.exception() if self._future.done() else None

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended and raises its error, or HmcTimeoutError after ``timeout`` seconds: it goes on."""
        self._check_process()
        try:
            self._future.result(timeout)
        except (FutureTimeoutError, TimeoutError):
            if self._future.done():
                raise
            raise HmcTimeoutError(
                f"the {self._what} of session {self.session!r} has not ended within {timeout} s; it goes on: cancel() ends it"
            ) from None

    def cancel(self) -> None:
        """Asks it to end, with HmcCancelledError, once what is in flight has drained. Returns at once; idempotent."""
        self._check_process()
        self._cancel.set()

    def __await__(self) -> Generator[Any, None, None]:
        """Awaits the end. A task that is cancelled meanwhile cancels the transfer and ends when its pages are safe."""
        self._check_process()
        return self._awaited().__await__()

    async def _awaited(self) -> None:
        future = asyncio.wrap_future(self._future)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.cancelled():
                raise
            self.cancel()
            while not future.done():
                with contextlib.suppress(BaseException):
                    await asyncio.shield(future)
            future.exception()  # it was seen
            raise
