"""Awaiting Works: one CompletionQueue per event loop (hmc._loop). No thread, whatever the number of waits.

Cancelling an awaited Work takes effect at once. A wait (accept, lookup, wait_notify, ...) that is cancelled consumes nothing, or
returns what it had consumed already. An operation on memory that is too late to stop keeps its task until it has ended: a cancelled
await never ends while its memory may still be read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from hmc import _core

if TYPE_CHECKING:
    from hmc._loop import _Waiter

__all__ = ["await_work", "install"]

_Ranked = _core.Member | _core.Communicator


def _watched(work: _core.Work, own: bool) -> _Waiter:
    try:
        from hmc._loop import watched  # asyncio takes longer to import than all of hmc

        return watched(work)
    except BaseException:
        if own:
            work._withdraw()
        raise


async def _completion(work: _core.Work, own: bool = True) -> None:
    """``own``: no other code has this Work. Where no loop can watch it, it is withdrawn: it would consume what others wait for."""
    if not work.done:
        await _watched(work, own).wait()
    error = work.error()
    if error is not None:
        raise error


async def _completed_info(work: _core.Work) -> _core.MessageInfo:
    await _completion(work, own=False)
    return work.info


def await_work(work: _core.Work) -> Generator[Any, None, _core.MessageInfo]:
    """What ``Work.__await__`` returns: completes with the Work's MessageInfo, or raises its error."""
    return _completed_info(work).__await__()


# ---- methods that install() adds; the stub (_core.pyi) has their types ----


async def _accept(self: _core.Context, timeout: float | None = None) -> _core.Peer:
    work = self._iaccept(timeout)
    await _completion(work)
    return work._take()


async def _connect(self: _core.Context, address: str, timeout: float | None = 30.0) -> _core.Peer:
    work = self._iconnect(address, timeout)
    await _completion(work)
    return work._take()


async def _lookup(self: _core.Peer, name: str, timeout: float | None = None) -> _core.RemoteBuffer:
    work = self._ilookup(name, timeout)
    await _completion(work)
    return work._take()


async def _import_buffer(self: _core.Peer, descriptor: _core.Descriptor, timeout: float | None = 30.0) -> _core.RemoteBuffer:
    work = self._iimport(descriptor, timeout)
    await _completion(work)
    return work._take()


async def _notify_peer(self: _core.Peer, notify: Any, timeout: float | None = None) -> None:
    await _completion(self._inotify(notify, timeout))


async def _notify(self: _Ranked, dst: int, notify: Any, timeout: float | None = None) -> None:
    await _completion(self._inotify(dst, notify, timeout))


async def _wait_notify_of_peer(self: _core.Peer, id: int, count: int = 1, timeout: float | None = None) -> None:
    await _completion(self._iwait_notify(id, count, timeout))


async def _wait_notify(self: _Ranked, src: int, id: int, count: int = 1, timeout: float | None = None) -> None:
    await _completion(self._iwait_notify(src, id, count, timeout))


async def _notifications(self: _core.Peer | _Ranked, timeout: float | None = 0.0) -> list[tuple[int, bytes]]:
    work = self._inotifications(timeout)
    await _completion(work)
    return work._take()


async def _barrier(self: _Ranked, timeout: float | None = None) -> None:
    await _completion(self._ibarrier(timeout))


_CONSUMES_NOTHING = "Cancelling takes effect at once and loses nothing."

_NOTES = {
    "connect": "Cancelling takes effect at once; a connection that was made already is kept in peers.",
    "barrier": "Cancelling takes effect at once; the Communicator is then unusable, as after a timeout.",
    "notify": "Cancelling takes effect at once: the notification was raised, or is not sent.",
}


def install() -> None:
    """Adds the ``*_async`` coroutines to the classes of the core."""
    ranked = {"notify": _notify, "wait_notify": _wait_notify, "notifications": _notifications, "barrier": _barrier}
    of_peer: dict[str, Callable[..., Any]] = {
        "lookup": _lookup,
        "import_buffer": _import_buffer,
        "notify": _notify_peer,
        "wait_notify": _wait_notify_of_peer,
        "notifications": _notifications,
    }
    methods: list[tuple[Any, dict[str, Any]]] = [
        (_core.Context, {"accept": _accept, "connect": _connect}),
        (_core.Peer, of_peer),
        (_core.Member, ranked),
        (_core.Communicator, ranked),
    ]
    for cls, functions in methods:
        for name, function in functions.items():
            function.__name__ = f"{name}_async"
            function.__doc__ = f"As {name}(), as a coroutine that takes no thread. {_NOTES.get(name, _CONSUMES_NOTHING)}"
            setattr(cls, function.__name__, function)
