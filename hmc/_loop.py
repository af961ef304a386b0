"""What watches Works for tasks: one CompletionQueue per event loop, whose descriptor the loop watches.

Imported with asyncio by the first await that has to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref

from hmc import _core

__all__ = ["watched"]


class _Waiter:
    """A Work that a task waits for. Kept, with the Work's buffers, until the Work completes."""

    def __init__(self, work: _core.Work, loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def finish(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def wait(self) -> None:
        """Returns when the Work is complete. Raises CancelledError once the Work was withdrawn, or has ended by itself."""
        try:
            await self.future
        except asyncio.CancelledError:
            if not self.work._withdraw():
                await self._end()
            raise
        except BaseException:  # the coroutine is closed, with its loop
            self.work._withdraw()
            raise

    async def _end(self) -> None:
        while not self.work.done:
            self.future = self.loop.create_future()
            with contextlib.suppress(asyncio.CancelledError):  # the caller raises it when the memory is safe
                await self.future


class _LoopQueue:
    """The Works that tasks of one loop wait for. Only the loop's reader refers to it, so it ends when the loop is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = _core.CompletionQueue()
        self.waiting: dict[int, _Waiter] = {}
        self.tokens = itertools.count()
        loop.add_reader(self.queue.fileno(), self.on_ready)

    def on_ready(self) -> None:
        try:
            for token in self.queue.drain():
                self.finish(token)
        except BaseException:
            # Raised by a signal handler: what drain() took is lost where it ran before the first token was handled.
            asyncio.get_running_loop().call_soon(self.finish_completed)
            raise

    def finish_completed(self) -> None:
        """Finish what is complete, by the Works themselves: their tokens may be lost."""
        try:
            for token in [token for token, waiter in self.waiting.items() if waiter.work.done]:
                self.finish(token)
        except BaseException:
            asyncio.get_running_loop().call_soon(self.finish_completed)
            raise

    def finish(self, token: int) -> None:
        waiter = self.waiting.get(token)
        if waiter is not None:
            waiter.finish()
            del self.waiting[token]

    def add(self, work: _core.Work, loop: asyncio.AbstractEventLoop) -> _Waiter:
        """Watch a Work. Raises ClosedError in a forked child, for a pending Work of the parent."""
        token, waiter = next(self.tokens), _Waiter(work, loop)
        self.queue.watch(work, token)  # its token is drained by this thread, later
        self.waiting[token] = waiter
        return waiter


_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_LoopQueue]] = weakref.WeakKeyDictionary()


def watched(work: _core.Work) -> _Waiter:
    """For the loop that runs."""
    loop = asyncio.get_running_loop()
    known = _queues.get(loop)
    queue = None if known is None else known()
    if queue is None:
        queue = _LoopQueue(loop)
        _queues[loop] = weakref.ref(queue)
    return queue.add(work, loop)
