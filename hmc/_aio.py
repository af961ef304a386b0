"""Awaiting Works: one CompletionQueue per event loop, whose descriptor the loop watches. No thread per operation.

Calls that have no Work (accept, connect, lookup, wait_notify) are offered as coroutines that run the blocking call on the loop's
default executor; they end at their timeout even when the awaiting task was cancelled before.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import Any, cast

from hmc import _core

__all__ = ["await_work", "install"]


class _LoopQueue:
    """The Works that tasks of one loop wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = _core.CompletionQueue()
        self.waiting: dict[int, tuple[_core.Work, asyncio.Future[None]]] = {}
        self.tokens = itertools.count()
        loop.add_reader(self.queue.fileno(), self.on_ready)

    def on_ready(self) -> None:
        """Resolves the futures of what completed."""
        for token in self.queue.drain():
            work, future = self.waiting.pop(token)
            if not future.done():
                error = work.error()
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    def wait(self, work: _core.Work, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future for ``work``, which is kept (with its buffers) until it completes, whatever becomes of the future."""
        token = next(self.tokens)
        future: asyncio.Future[None] = loop.create_future()
        self.waiting[token] = (work, future)
        self.queue.watch(work, token)
        return future


_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = weakref.WeakKeyDictionary()


async def _completion(work: _core.Work) -> _core.MessageInfo:
    if work.done:
        work.wait()
        return cast(_core.MessageInfo, work.info)
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _LoopQueue(loop)
    try:
        await queue.wait(work, loop)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # too late to stop: it completes by itself, and the queue keeps its buffers until then
            work.cancel()
        raise
    return cast(_core.MessageInfo, work.info)


def await_work(work: _core.Work) -> Generator[Any, None, _core.MessageInfo]:
    """What ``Work.__await__`` returns: completes with the Work's MessageInfo, or raises its error."""
    return _completion(work).__await__()


def _in_executor(method: Callable[..., Any], doc: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: method(self, *args, **kwargs))

    call.__doc__ = doc
    return call


def install() -> None:
    """Adds the ``*_async`` coroutines to the classes of the core."""
    for cls, names in (
        (_core.Context, ("accept", "connect")),
        (_core.Peer, ("lookup", "wait_notify", "notifications")),
        (_core.Member, ("wait_notify", "notifications", "barrier")),
        (_core.Communicator, ("wait_notify", "notifications", "barrier")),
    ):
        for name in names:
            doc = f"As {name}(), as a coroutine; the call waits on the loop's default executor."
            setattr(cls, f"{name}_async", _in_executor(getattr(cls, name), doc))
