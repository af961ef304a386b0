"""hmc.kv where something happens between two steps of a call, where a callback fails, and after fork()."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kv_sides import PAIRS, drain_unread

import hmc
from hmc import _process, _workers, kv
from hmc.kv import _receive, _remote
from hmc.kv._blocks import Session
from hmc.kv._wire import ACCEPTED, Record, Ticket


def test_answers_to_a_cancelled_push_do_not_start_another(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    begun, go = threading.Event(), threading.Event()
    begin = _receive.Inbox._begin

    def late(inbox: Any, record: Record) -> Any:
        begun.set()
        assert go.wait(20)
        return begin(inbox, record)

    monkeypatch.setattr(_receive.Inbox, "_begin", late)
    inbox = b.pool.receive(to_a, [0, 1])
    before = [array.copy() for array in b.arrays]
    first = a.pool.push(to_b, inbox.ticket, [5, 6])
    assert begun.wait(20)
    first.cancel()
    with pytest.raises(hmc.HmcCancelledError):
        first.wait(20)
    second = a.pool.push(to_b, inbox.ticket, [1, 2])
    with pytest.raises(hmc.LeaseExpiredError):
        for layer in range(3):
            second.ready(layer)
        go.set()
        second.wait(20)
    go.set()
    with pytest.raises(hmc.HmcCancelledError):
        inbox.wait(20)
    assert all(np.array_equal(array, old) for array, old in zip(b.arrays, before, strict=True))


def test_a_session_stays_when_the_target_accepts_too_early(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    ticket = Ticket.of_inbox(b.pool.id, b.pool.listener.tag, 32, 0, 0, True, np.array([0, 1]))
    started = threading.Event()
    b.pool.listener.open(to_a, ticket.generation, lambda _: started.set())
    mine = a.pool.allocate("s", 32)
    move = a.pool.migrate(to_b, ticket.encode(), session="s")
    assert started.wait(20)
    to_a.send(Record(ACCEPTED, ticket.generation, 0).encode(), tag=a.pool.listener.tag, timeout=20)
    with pytest.raises(hmc.ProtocolError):
        move.wait(20)
    assert a.pool.lease("s")._ticket.blocks.tolist() == mine


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["expires", "is released", "is freed"])
def test_a_failing_callback_ends_its_lease_only(kv_pair: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type))

    def fails(_: Any) -> None:
        raise ZeroDivisionError

    lease = a.pool.lease("s", [1], seconds=0.05 if how == "expires" else 60, on_end=fails)
    if how == "is released":
        lease.release()
    elif how == "is freed":
        a.pool.free("s")
    assert lease.wait(20) == ("expired" if how == "expires" else "released")
    other = a.pool.lease("t", [2, 3])
    b.pool.pull(to_a, other.ticket, [0, 1]).wait(20)
    assert other.wait(20) == "read"
    assert seen == [ZeroDivisionError]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, ZeroDivisionError])
def test_leases_expire_after_any_exception_of_a_callback(
    kv_pair: Any, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    seen: list[Any] = []

    def hook(args: Any) -> None:
        seen.append(args.exc_type)
        raise ValueError("of the hook")

    def fails(_: Any) -> None:
        raise error

    monkeypatch.setattr(threading, "excepthook", hook)
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: seen.append(kind))
    for _ in range(2):
        assert a.pool.lease("s", [1], seconds=0.05, on_end=fails).wait(20) == "expired"
    assert a.pool.lease("t", [2], seconds=0.05).wait(20) == "expired"
    assert seen == [error, ValueError] * 2


def test_a_peer_is_checked_before_anything_is_held(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    ticket = a.pool.lease("s", [1]).ticket
    wrong: Any = "peer"
    calls: list[Callable[[], Any]] = [
        lambda: b.pool.lease("s", [1], peer=wrong),
        lambda: b.pool.pull(wrong, ticket, [1]),
        lambda: b.pool.receive(wrong, [1]),
        lambda: a.pool.push(wrong, b.pool.receive(to_a, [1]).ticket, [1]),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="peer must be"):
            call()
    assert b.pool.lease("s", [1], seconds=0.05).wait(20) == "expired"


def test_threads_that_are_refused_leave_nothing(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [1])
    inbox = b.pool.receive(to_a, [0])
    c, d, to_c, _ = kv_pair(*PAIRS[0])

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as few:
        few.setattr(_process.threading, "Thread", Refused)
        few.setattr(_workers, "_idle", [])  # threads that other tests have started
        for call in (
            lambda: d.pool.receive(to_c, [1]),
            lambda: d.pool.lease("s", [1]),
            lambda: b.pool.pull(to_a, lease.ticket, [1]),
            lambda: a.pool.push(to_b, inbox.ticket, [1]),
        ):
            with pytest.raises(hmc.OutOfMemoryError, match="thread"):
                call()
    for pool in (a.pool, d.pool):
        counters = pool.counters()
        assert (counters["transfers"], counters["pushes_open"]) == (0, 0)
    assert d.pool.counters()["rows_free"] == c.pool.counters()["rows_free"]
    assert d.pool.lease("s", [1], seconds=0.05).wait(20) == "expired"
    d.pool.close(20)


def test_a_name_that_is_used_again_during_a_call_lends_its_old_blocks(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    old = a.pool.allocate("s", 16)
    use = a.pool.blocks.use

    def interrupted(*given: Any) -> Session:
        owner = use(*given)
        monkeypatch.undo()
        a.pool.free("s")
        a.pool.allocate("s", 16)
        return owner

    monkeypatch.setattr(a.pool.blocks, "use", interrupted)
    lease = a.pool.lease("s")
    assert lease._ticket.blocks.tolist() == old
    a.pool.blocks.free("s")
    assert old[0] not in a.pool.allocate("t", 16 * a.pool.free_blocks)
    lease.release()
    assert a.pool.allocate("u", 16) == old


@pytest.mark.parametrize("digest", [False, True])
def test_a_pool_that_closes_during_a_lease(kv_pair: Any, monkeypatch: pytest.MonkeyPatch, digest: bool) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    use = a.pool.blocks.use

    def interrupted(*given: Any) -> Session:
        a.pool.close()
        return use(*given)

    monkeypatch.setattr(a.pool.blocks, "use", interrupted)
    with pytest.raises(hmc.ClosedError):
        a.pool.lease("s", [1], digest=digest)
    assert not a.pool.blocks.sessions


def test_a_pool_that_closes_during_a_call(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    ticket = a.pool.lease("s", [1]).ticket
    use = b.pool.blocks.use

    def interrupted(*given: Any) -> Session:
        b.pool.close()
        return use(*given)

    monkeypatch.setattr(b.pool.blocks, "use", interrupted)
    with pytest.raises(hmc.ClosedError):
        b.pool.pull(to_a, ticket, [1])
    assert not b.pool._remotes


def test_nothing_survives_a_fork(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [1, 2], seconds=600)
    inbox = b.pool.receive(to_a, [4, 5])
    push = a.pool.push(to_b, inbox.ticket, [1, 2])
    calls: list[Callable[[], Any]] = [
        lambda: lease.release(),
        lambda: lease.renew(),
        lambda: lease.wait(1),
        lambda: push.ready(0, 1),
        lambda: push.close(1),
        lambda: push.cancel(),
        lambda: inbox.wait(1),
        lambda: inbox.wait_layer(0, 1),
        lambda: inbox.layers,
        lambda: a.pool.allocate("t", 1),
        lambda: a.pool.free("s"),
        lambda: a.pool.free_blocks,
        lambda: a.pool.lease("s", [1]),
        lambda: a.pool.push(to_b, inbox.ticket, [1]),
        lambda: b.pool.pull(to_a, lease.ticket, [1]),
        lambda: b.pool.receive(to_a, [1]),
        lambda: a.pool.counters(),
        lambda: a.pool.close(1),
    ]
    child = os.fork()
    if child == 0:
        wrong = 1
        try:
            for call in calls:
                with pytest.raises(hmc.ClosedError, match="fork"):
                    call()
            wrong = 0
        finally:
            os._exit(wrong)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ended[1] == 0
    b.pool.pull(to_a, lease.ticket, [7, 8]).wait(20)
    assert lease.wait(20) == "read"
    for layer in range(3):
        push.ready(layer)
    push.close(20)
    inbox.wait(20)


@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_a_push_that_is_cancelled_before_its_first_record_ends_the_receive(
    kv_pair: Any, transports: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0], transports=transports)
    go = threading.Event()
    remote = a.pool.remote

    def late(*arguments: Any) -> Any:
        assert go.wait(20)
        return remote(*arguments)

    monkeypatch.setattr(a.pool, "remote", late)
    before = [array.copy() for array in b.arrays]
    inbox = b.pool.receive(to_a, [0, 1])
    push = a.pool.push(to_b, inbox.ticket, [5, 6])
    push.ready(0)
    push.cancel()
    go.set()
    with pytest.raises(hmc.HmcCancelledError):
        push.wait(20)
    with pytest.raises(hmc.HmcCancelledError, match="sender stopped"):
        inbox.wait(20)
    with pytest.raises(hmc.LeaseExpiredError, match="used before"):
        a.pool.push(to_b, inbox.ticket, [1, 2]).wait(20)
    for _ in range(50):  # at any moment
        inbox = b.pool.receive(to_a, [0, 1])
        a.pool.push(to_b, inbox.ticket, [5, 6]).cancel()
        with pytest.raises(hmc.HmcCancelledError):
            inbox.wait(20)
    assert all(np.array_equal(array, old) for array, old in zip(b.arrays, before, strict=True))
    # Answers arrive before a later message. The last one may still be in flight.
    last = to_b.irecv(np.zeros(1, np.uint8), tag=1)
    to_a.send(np.ones(1, np.uint8), tag=1, timeout=20)
    last.wait(20)
    drain_unread(a, b)
    for side in (a, b):
        side.pool.close(20)
        assert side.pool.counters()["pushes_open"] == 0
        assert side.ctx.counters()["messages.unread"] == 0


def test_a_migration_that_cannot_begin_ends_the_receive(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair("L=3 B=12 H=4 N=16 (kv D=32) bf16", "L=2@1 B=12 H=2@2 N=16 (kv D=32) bf16")
    mine = a.pool.allocate("s", 32)
    inbox = b.pool.receive(to_a, [0, 1])
    with pytest.raises(hmc.InvalidArgumentError, match="lacks layers or heads"):
        a.pool.migrate(to_b, inbox.ticket, session="s").wait(20)
    with pytest.raises(hmc.HmcCancelledError, match="sender stopped"):
        inbox.wait(20)
    assert a.pool.lease("s")._ticket.blocks.tolist() == mine


def test_a_ticket_of_a_closed_pool_leaves_no_message(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    ticket = b.pool.receive(to_a, [0, 1]).ticket
    b.pool.close(20)
    push = a.pool.push(to_b, ticket, [0, 1])
    with pytest.raises(hmc.LeaseExpiredError):
        push.wait(20)
    assert b.ctx.counters()["messages.unread"] == 0


@pytest.mark.parametrize("step", ["describe", "decode"])
def test_a_pool_that_closes_while_it_is_imported_has_no_lease(kv_pair: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Both its readers and its senders get the error that says so, and nothing is sent to the pool that is gone."""
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    if step == "describe":
        owner, name = _remote, "_described"
    else:
        owner, name = _remote.Description, "decode"
    real = getattr(owner, name)

    def closing(*given: Any) -> Any:
        found = real(*given)
        pool.close(20)
        return found

    lease, inbox = a.pool.lease("s", [1, 2]), b.pool.receive(to_a, [3, 4])
    monkeypatch.setattr(owner, name, staticmethod(closing) if owner is not _remote else closing)
    pool = a.pool
    pull = b.pool.pull(to_a, lease.ticket, [5, 6])
    with pytest.raises(hmc.LeaseExpiredError):
        pull.wait(20)
    monkeypatch.undo()
    a.pool = kv.Pool(a.ctx, a.arrays, a.layout)
    monkeypatch.setattr(owner, name, staticmethod(closing) if owner is not _remote else closing)
    pool = b.pool
    push = a.pool.push(to_b, inbox.ticket, [1, 2])
    with pytest.raises(hmc.LeaseExpiredError):
        push.wait(20)
    monkeypatch.undo()
    with pytest.raises(hmc.HmcCancelledError):
        inbox.wait(20)
    assert a.ctx.counters()["messages.unread"] == b.ctx.counters()["messages.unread"] == 0


def test_a_push_to_a_peer_that_leaves_before_its_first_record_keeps_nothing_of_it(
    kv_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    remote = a.pool.remote

    def late(*arguments: Any) -> Any:
        to_a.close()
        until = time.monotonic() + 60
        while a.pool.listener._posted:
            assert time.monotonic() < until
            time.sleep(0.001)
        return remote(*arguments)

    monkeypatch.setattr(a.pool, "remote", late)
    push = a.pool.push(to_b, b.pool.receive(to_a, [0, 1]).ticket, [5, 6])
    with pytest.raises((hmc.ClosedError, hmc.PeerLostError)):
        push.wait(60)
    assert not a.pool.listener._begun


def test_the_error_of_a_peer_that_leaves_is_about_pages(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [0, 1])
    push = a.pool.push(to_b, inbox.ticket, [5, 6])
    push.ready(0)
    inbox.wait_layer(0, 60)
    to_a.close()
    for transfer, peer in ((inbox, to_a), (push, to_b)):
        with pytest.raises((hmc.ClosedError, hmc.PeerLostError), match="may have been written in part") as raised:
            transfer.wait(60)
        assert peer.name in str(raised.value)
        assert "nothing was written" not in str(raised.value)
        assert isinstance(raised.value.__cause__, hmc.HmcError)
