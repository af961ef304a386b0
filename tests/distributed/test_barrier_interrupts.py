"""Monitored barriers that a signal's handler interrupts leave no receive behind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opcodes import interrupted_at

import hmc
from hmc.torch import _barrier
from hmc.torch._barrier import MonitoredBarrier


class _Posted:
    """A receive of _Wire."""

    def __init__(self, into: bytearray) -> None:
        self.into, self.done, self.cancelled = into, False, False
        self.info = SimpleNamespace(bytes=0)

    def take(self, message: bytes) -> None:
        self.into[: len(message)] = message
        self.done, self.info.bytes = True, len(message)

    def wait(self, timeout: float | None) -> None:
        if not self.done:
            raise hmc.HmcTimeoutError("not complete")

    def cancel(self) -> None:
        if self.done:
            raise hmc.InvalidArgumentError("the operation is already complete")
        self.done = self.cancelled = True

    def error(self) -> hmc.HmcError | None:
        return hmc.HmcCancelledError("cancelled") if self.cancelled else None


class _Wire:
    """A Communicator of two ranks. Messages go to the receives in the order of posting."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.answers = False  # the other rank answers what is sent
        self.posted: list[_Posted] = []
        self.unread: list[bytes] = []
        self.sent: list[tuple[int, int]] = []

    def deliver(self, number: int, code: int) -> None:
        message = struct.pack("<qB", number, code)
        waiting = [receive for receive in self.posted if not receive.done]
        waiting[0].take(message) if waiting else self.unread.append(message)

    def irecv(self, array: bytearray, rank: int, tag: int) -> _Posted:
        self.posted.append(receive := _Posted(array))
        if self.unread:
            receive.take(self.unread.pop(0))
        return receive

    def isend(self, array: bytes, rank: int, tag: int, timeout: float = 0) -> None:
        self.sent.append(struct.unpack_from("<qB", array))
        if self.answers:
            self.deliver(self.sent[-1][0], 0)

    send = isend


def _interrupted_at(step: int, run: Callable[[], None]) -> bool:
    """Whether the barrier took so many of Python's steps, and an exception was raised then."""
    try:
        return interrupted_at(step, lambda code: code.co_filename == _barrier.__file__, run)
    except hmc.HmcError:
        return False


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_costs_the_next_call_no_message(monkeypatch: pytest.MonkeyPatch, rank: int, times: int) -> None:
    """Between any two of Python's steps, where the handler of a signal may raise; also where another one comes meanwhile."""

    def wait_any(works: list[_Posted], timeout: float) -> None:
        works[0].wait(timeout)

    monkeypatch.setattr(hmc, "wait_any", wait_any)
    interrupted = True
    for step in range(3000):
        if not interrupted:
            break
        wire: Any = _Wire(rank)
        barrier = MonitoredBarrier(wire)
        if rank == 0:
            wire.deliver(1, 0)  # rank 1 waits
        interrupted = _interrupted_at(step, lambda barrier=barrier: barrier.wait(0.0, False))  # type: ignore[misc]
        if times == 2:
            _interrupted_at(step // 2, lambda barrier=barrier: barrier.wait(0.0, False))  # type: ignore[misc]
        if rank == 0:
            if wire.sent:
                wire.deliver(2, 0)  # it had its answer, and comes again
            barrier.wait(0.0, False)
            assert wire.sent[-1] == (2 if len(wire.sent) > 1 and wire.sent[-1][0] == 2 else 1, 0), (step, wire.sent)
        else:
            wire.answers = True
            barrier.wait(0.0, False)
        assert all(receive.done for receive in wire.posted), step
    assert step > 100
