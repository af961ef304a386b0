"""A pull, as the user sees it: waits, awaits, cancels."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from hmc.errors import HmcTimeoutError, OutOfMemoryError

__all__ = ["Pull"]


def _main(future: Future[None] | None, cancel: threading.Event, run: Callable[[threading.Event], None]) -> None:
    assert future is not None
    try:
        run(cancel)
    except BaseException as error:
        future.set_exception(error)
        future = None  # else the error's traceback and the future keep each other
    else:
        future.set_result(None)


class Pull:
    """A pull under way: wait for it or await it. Any thread.

    It ends only once nothing of it can still be read or written. Dropping it does not cancel it. Until commit() the target is
    unchanged, whatever the outcome.
    """

    def __init__(self, run: Callable[[threading.Event], None]) -> None:
        self._future: Future[None] = Future()
        self._cancel = threading.Event()
        main = threading.Thread(target=_main, args=(self._future, self._cancel, run), name="hmc.weights pull", daemon=True)
        try:
            main.start()
        except RuntimeError as error:
            raise OutOfMemoryError(f"the pull requires a thread: {error}") from None

    @property
    def done(self) -> bool:
        """True once it has ended, with whatever outcome."""
        return self._future.done()

    def error(self) -> BaseException | None:
        """The exception of a pull that failed, else None (also while it is under way)."""
        return self._future.exception() if self._future.done() else None

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended and raises its error, or HmcTimeoutError after ``timeout`` seconds: it goes on."""
        try:
            self._future.result(timeout)
        except (FutureTimeoutError, TimeoutError):
            if self._future.done():
                return self._future.result()  # it ended just now, or raised a timeout of its own
            raise HmcTimeoutError(f"the pull has not ended within {timeout} s; it goes on: cancel() ends it") from None

    def drained(self, timeout: float | None = None) -> None:
        """Waits until it has ended, with whatever outcome. HmcTimeoutError after ``timeout`` seconds."""
        try:
            self._future.exception(timeout)
        except (FutureTimeoutError, TimeoutError):
            raise HmcTimeoutError(f"the pull has not ended within {timeout} s") from None

    def cancel(self) -> None:
        """Asks it to end, with HmcCancelledError, once what is in flight has drained. Returns at once; idempotent."""
        self._cancel.set()

    def __await__(self) -> Generator[object, None, None]:
        """Awaits the end. A task that is cancelled meanwhile cancels the pull, and ends when the pull has ended."""
        return self._awaited().__await__()

    async def _awaited(self) -> None:
        future = asyncio.wrap_future(self._future)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            self.cancel()
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError, Exception):  # GeneratorExit: the loop was closed
                    await asyncio.shield(future)
            future.exception()  # it was seen
            raise
