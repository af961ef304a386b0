"""Calls of hmc.kv that the handler of a signal ends by an exception: free(session) then gives everything back."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import _base
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from kv_sides import PAIRS, Side
from opcodes import signalled_at

import hmc
from hmc import _process, _threaded, kv
from hmc.kv import _listener
from hmc.kv._blocks import Use

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="finds where Python looks for signals in its exception tables")

FILES = (os.path.dirname(kv.__file__), _process.__file__, _threaded.__file__, threading.__file__)
HELD = ("leases_held", "transfers", "pushes_open", "blocks_free", "rows_free", "slots_free")


def concerns(frame: FrameType) -> bool:
    code, back = frame.f_code, frame.f_back
    # Condition and Future of Python's library may themselves be left with a lock that is taken, or is not.
    if not code.co_filename.startswith(FILES) or code.co_name in ("wait", "_release_save", "_acquire_restore", "_is_owned"):
        return False
    return back is None or back.f_code.co_filename != _base.__file__


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Whether a call had so many points, and was interrupted there."""
    return signalled_at(step, concerns, call)


def held(*sides: Side) -> list[Any]:
    return [
        [(name, side.pool.counters()[name]) for name in HELD] + [("sessions", len(side.pool.blocks.sessions))] for side in sides
    ]


def settles(before: list[Any], *sides: Side) -> None:
    until = time.monotonic() + 60
    while (found := held(*sides)) != before:
        assert time.monotonic() < until, (found, before)
        time.sleep(0.001)


def end(leases: list[kv.Lease]) -> None:
    for lease in leases:
        lease.release()


def in_listener(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _listener.__file__


def pushes(a: Side, b: Side, to_a: Any, to_b: Any) -> None:
    """A push between them comes to its end: what they say to each other is heard."""
    inbox = b.pool.receive(to_a, [5], session="receives")
    with a.pool.push(to_b, inbox.ticket, [6], session="s") as push:
        for layer in range(3):
            push.ready(layer, 60)
    inbox.wait(60)


def within(call: Callable[[], object]) -> None:
    """Calls it on another thread, which must return: a lock that was left taken holds it up for ever."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("call", ["allocate", "lease", "lease of allocated blocks", "release", "free", "push", "receive", "pull"])
def test_an_interrupted_call_leaves_nothing(kv_pair: Any, call: str) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    first = a.pool.lease("first", [1])
    b.pool.pull(to_a, first.ticket, [1]).wait(60)
    first.wait(60)  # no longer held is not yet over: its session would be found in what was before
    before = held(a, b)
    ended: list[Any] = []
    step = 0
    for step in range(2000):
        user = Use()
        leases: list[kv.Lease] = []
        if call in ("lease of allocated blocks", "release", "free"):
            a.pool.allocate("s", 32)
            a.pool.blocks.use("s", user)
        if call in ("release", "free"):
            leases.append(a.pool.lease("s", seconds=3600, on_end=ended.append))
        ticket = b""
        if call == "push":
            ticket = b.pool.receive(to_a, [3, 4], session="receives").ticket
        elif call == "pull":
            ticket = a.pool.lease("lends", [3, 4], seconds=3600).ticket
        calls: dict[str, Callable[[], object]] = {
            "allocate": lambda: a.pool.allocate("s", 40),
            "lease": lambda: a.pool.lease("s", [1, 2], seconds=3600),
            "lease of allocated blocks": lambda: a.pool.lease("s", seconds=3600),
            "release": partial(end, leases),
            "free": lambda: a.pool.free("s"),
            "push": partial(a.pool.push, to_b, ticket, [3, 4], session="s"),
            "receive": lambda: b.pool.receive(to_a, [3, 4], session="s"),
            "pull": partial(b.pool.pull, to_a, ticket, [3, 4], session="s"),
        }
        interrupted = interrupted_at(step, calls[call])
        for side in (a, b):
            for session in ("s", "lends", "receives"):
                side.pool.free(session)
        if user.held:  # the blocks stay with their other user
            assert a.pool.free_blocks == a.layout.blocks - 2
            a.pool.blocks.release(user)
        for lease in leases:
            lease.wait(60)
        settles(before, a, b)
        if not interrupted:
            break
    else:
        pytest.fail("it always was interrupted")
    assert step > 10
    assert len(ended) == len(set(ended))
    # Every lock is free, and leases still end by themselves.
    assert a.pool.lease("s", [1], seconds=0.01).wait(60) == "expired"
    a.pool.close(60)
    b.pool.close(60)


@pytest.mark.parametrize("call", ["push", "receive"])
def test_a_peer_is_heard_after_an_interrupted_first_call(kv_pair: Any, call: str) -> None:
    for step in range(200):
        a, b, to_a, to_b = kv_pair(*PAIRS[0])
        if call == "push":
            ticket = b.pool.receive(to_a, [3], session="receives").ticket
            interrupted = signalled_at(step, in_listener, partial(a.pool.push, to_b, ticket, [3], session="s"))
        else:
            interrupted = signalled_at(step, in_listener, partial(b.pool.receive, to_a, [3], session="receives"))
        a.pool.free("s")
        b.pool.free("receives")
        pushes(a, b, to_a, to_b)
        if not interrupted:
            break
    assert step > 5


def test_an_interrupted_cancel_can_be_repeated(kv_pair: Any) -> None:
    _, b, to_a, _ = kv_pair(*PAIRS[0])
    for step in range(2000):
        inbox = b.pool.receive(to_a, [0, 1])
        interrupted = interrupted_at(step, inbox.cancel)
        within(inbox.cancel)
        with pytest.raises(hmc.HmcCancelledError):
            inbox.wait(60)
        if not interrupted:
            break
    else:
        pytest.fail("it always was interrupted")


def test_an_interrupted_close_goes_on(kv_pair: Any) -> None:
    a, _, _, to_b = kv_pair(*PAIRS[0])
    step = 0
    for step in range(2000):
        pool = kv.Pool(a.ctx, np.zeros(a.layout.buffer_bytes, np.uint8), a.layout)
        pool.allocate("s", 32)
        ended: list[Any] = []
        lease, inbox = pool.lease("s", on_end=ended.append), pool.receive(to_b, [3, 4])
        interrupted = interrupted_at(step, pool.close)
        within(partial(pool.close, 60))
        assert lease.done
        assert inbox.done
        assert ended == [lease]
        if not interrupted:
            break
    else:
        pytest.fail("it always was interrupted")
    assert step > 10
