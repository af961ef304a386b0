"""Awaiting Works: one CompletionQueue per event loop, whose descriptor the loop watches. No thread per operation.

Calls that have no Work (accept, connect, lookup, wait_notify) are offered as coroutines that run the blocking call on the loop's
default executor. When the awaiting task is cancelled (Ctrl-C does that), those that can be repeated end within ``SLICE`` seconds;
connect and barrier end at their timeout, since half of one cannot be taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from hmc import _core
from hmc.errors import HmcTimeoutError

__all__ = ["await_work", "install"]

SLICE = 0.2

_T = TypeVar("_T")
_Ranked = _core.Member | _core.Communicator


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
        return work.info
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
    return work.info


def await_work(work: _core.Work) -> Generator[Any, None, _core.MessageInfo]:
    """What ``Work.__await__`` returns: completes with the Work's MessageInfo, or raises its error."""
    return _completion(work).__await__()


async def _blocking(method: Callable[..., _T], *args: Any) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, method, *args)


async def _repeated(method: Callable[..., _T], *args: Any, timeout: float | None) -> _T:
    """As _blocking, for a call that takes nothing at a timeout: waits in slices, so that cancelling frees the thread."""
    if timeout is not None and not timeout > SLICE:
        return await _blocking(method, *args, timeout)
    deadline = float("inf") if timeout is None else time.monotonic() + timeout
    cancelled = threading.Event()

    def wait() -> _T:
        while True:
            left = deadline - time.monotonic()
            last = left <= SLICE or cancelled.is_set()
            try:
                result = method(*args, max(0.0, min(left, SLICE)))
            except HmcTimeoutError:
                if last:
                    raise
            else:
                if last or result != []:  # no notification yet
                    return result

    try:
        return await _blocking(wait)
    except asyncio.CancelledError:
        cancelled.set()
        raise


# ---- methods that install() adds; the stub (_core.pyi) has their types ----


async def _accept(self: _core.Context, timeout: float | None = None) -> _core.Peer:
    return await _repeated(self.accept, timeout=timeout)


async def _connect(self: _core.Context, address: str, timeout: float | None = 30.0) -> _core.Peer:
    return await _blocking(self.connect, address, timeout)


async def _lookup(self: _core.Peer, name: str, timeout: float | None = None) -> _core.RemoteBuffer:
    return await _repeated(self.lookup, name, timeout=timeout)


async def _wait_notify_of_peer(self: _core.Peer, id: int, count: int = 1, timeout: float | None = None) -> None:
    await _repeated(self.wait_notify, id, count, timeout=timeout)


async def _wait_notify(self: _Ranked, src: int, id: int, count: int = 1, timeout: float | None = None) -> None:
    await _repeated(self.wait_notify, src, id, count, timeout=timeout)


async def _notifications(self: _core.Peer | _Ranked, timeout: float | None = 0.0) -> list[tuple[int, bytes]]:
    return await _repeated(self.notifications, timeout=timeout)


async def _barrier(self: _Ranked, timeout: float | None = None) -> None:
    await _blocking(self.barrier, timeout)


def install() -> None:
    """Adds the ``*_async`` coroutines to the classes of the core."""
    ranked = {"wait_notify": _wait_notify, "notifications": _notifications, "barrier": _barrier}
    methods: list[tuple[Any, dict[str, Any]]] = [
        (_core.Context, {"accept": _accept, "connect": _connect}),
        (_core.Peer, {"lookup": _lookup, "wait_notify": _wait_notify_of_peer, "notifications": _notifications}),
        (_core.Member, ranked),
        (_core.Communicator, ranked),
    ]
    for cls, functions in methods:
        for name, function in functions.items():
            function.__name__ = f"{name}_async"
            function.__doc__ = f"As {name}(), as a coroutine; the call waits on the loop's default executor."
            setattr(cls, function.__name__, function)
