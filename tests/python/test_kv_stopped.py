"""SIGSTOP of one side of a transfer of hmc.kv, and streams that are stuck: cancel, timeouts and close work all the same."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kv_process import OTHER, TEXT, this_process
from kv_sides import PAIRS, drain_unread, expected, same

import hmc
from hmc.kv import _cache, _listener, _pull, _push, _remote
from hmc.kv._wire import ABORT, STOP, Record

BLOCKS = 64
SOON = 20.0  # seconds; on a busy machine too


@pytest.fixture(params=[("shm", OTHER), ("tcp", TEXT)], ids=["shm-converted", "tcp-direct"])
def mine(request: pytest.FixtureRequest) -> Iterator[Any]:
    transports, text = request.param
    with this_process(transports=transports) as one:
        one.transports, one.text = transports, text
        yield one


LENDER = """
    lease = pool.lease("s", list(range(layout.blocks)), seconds=600)
    say(ticket=lease.ticket.hex())
    say(reason=lease.wait(60))
    time.sleep(600)
"""
RECEIVER = """
    inbox = pool.receive(peer, list(range(layout.blocks)))
    say(ticket=inbox.ticket.hex())
    try:
        inbox.wait(60)
    except hmc.HmcError as error:
        say(ended=type(error).__name__)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (_remote.RemotePool, "check"),
        (_pull.Pull, "_read"),
        (_pull.Pull, "_beat"),
        (_pull.Pull, "_digest_of_lease"),
        (_pull.Pull, "_check_generations"),
        (_pull.Pull, "_give_back"),  # everything was read: only the lease is to be ended
    ],
)
def test_a_pull_from_a_stopped_owner_is_cancelled(mine: Any, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = mine.start(mine.text, LENDER, HMC_TRANSPORTS=mine.transports)
    ticket = bytes.fromhex(other.read()["ticket"])
    monkeypatch.setattr(_pull, "_HEARTBEAT", -1.0)  # one after each piece
    real, stopped = getattr(owner, name), []

    def stop(*args: Any, **more: Any) -> Any:
        if not stopped:
            stopped.append(time.monotonic())
            other.kill(signal.SIGSTOP)
        return real(*args, **more)

    monkeypatch.setattr(owner, name, stop)
    pull = mine.pool.pull(other.peer, ticket, mine.pool.allocate("s", BLOCKS * 32), session="s")
    until = time.monotonic() + SOON
    while not stopped:
        assert time.monotonic() < until
        time.sleep(0.001)
    time.sleep(0.2)
    pull.cancel()
    with contextlib.suppress(hmc.HmcCancelledError):  # over shm the reader copies by itself
        pull.wait(SOON)
    mine.pool.free("s")
    assert mine.pool.free_blocks == BLOCKS
    other.kill(signal.SIGCONT)
    assert other.read() == {"reason": "read"}


@pytest.mark.parametrize("end", ["cancel", "free", "close"])
@pytest.mark.parametrize("way", ["pull", "push"])
def test_a_transfer_that_imports_a_stopped_pool_ends_at_once(mine: Any, way: str, end: str) -> None:
    other = mine.start(mine.text, LENDER if way == "pull" else RECEIVER, HMC_TRANSPORTS=mine.transports)
    ticket = bytes.fromhex(other.read()["ticket"])
    mine.pool.allocate("s", BLOCKS * 32)
    other.kill(signal.SIGSTOP)
    transfer = getattr(mine.pool, way)(other.peer, ticket, session="s")
    time.sleep(0.2)
    assert not transfer.done
    began = time.monotonic()
    if end == "close":
        mine.pool.close(SOON)
    else:
        transfer.cancel() if end == "cancel" else mine.pool.free("s")
    with pytest.raises(hmc.HmcCancelledError):
        transfer.wait(SOON)
    assert time.monotonic() - began < 5  # the import would go on for 10
    other.kill(signal.SIGCONT)


def test_a_push_to_a_stopped_receiver_ends_the_receive_when_it_goes_on(mine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = mine.start(mine.text, RECEIVER, HMC_TRANSPORTS=mine.transports)
    ticket = bytes.fromhex(other.read()["ticket"])
    mine.pool.allocate("s", BLOCKS * 32)
    real = _remote.RemotePool.__init__

    def impatient(self: Any, peer: Any, pool: Any, scratch: Any, timeout: float, check: Any) -> None:
        real(self, peer, pool, scratch, 0.3, check)

    monkeypatch.setattr(_remote.RemotePool, "__init__", impatient)
    other.kill(signal.SIGSTOP)
    push = mine.pool.push(other.peer, ticket, session="s")
    with pytest.raises(hmc.HmcTimeoutError, match=r"did not answer the import of its pool within 0\.3 s"):
        push.wait(SOON)
    mine.pool.free("s")
    assert mine.pool.free_blocks == BLOCKS
    other.kill(signal.SIGCONT)
    assert other.read() == {"ended": "HmcCancelledError"}


def test_a_push_that_cannot_import_ends_its_receive(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    errors = [
        hmc.HmcTimeoutError("import"),
        hmc.ProtocolError("the peer's pool is smaller than it says"),
        hmc.OutOfMemoryError("scratch"),
    ]
    for error in errors:
        a.pool._remotes.clear()
        inbox = b.pool.receive(to_a, [7, 8], 20)

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(_remote.RemotePool, "__init__", fail)
            push = a.pool.push(to_b, inbox.ticket, [1, 2])
            with pytest.raises(type(error)):
                push.wait(SOON)
        with pytest.raises(hmc.HmcCancelledError):
            inbox.wait(SOON)
    drain_unread(a, b)


def test_a_pull_that_cannot_import_gives_its_lease_back(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pull, "_END_SECONDS", SOON)
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    errors = [
        hmc.HmcTimeoutError("import"),
        hmc.ProtocolError("the peer's pool is smaller than it says"),
        hmc.OutOfMemoryError("scratch"),
        hmc.UnsupportedError("no path to the device"),
    ]
    for error in errors:
        b.pool._remotes.clear()
        lease = a.pool.lease("s", [1, 2], seconds=1e6)

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(_remote.RemotePool, "__init__", fail)
            with pytest.raises(type(error)):
                b.pool.pull(to_a, lease.ticket, [7, 8]).wait(SOON)
        assert lease.wait(SOON) == "read"
    lease = a.pool.lease("s", [1, 2], 20)
    wanted = expected(a, [1, 2], b, [7, 8], 20)
    b.pool.pull(to_a, lease.ticket, [7, 8]).wait(SOON)
    same(b, wanted)


def test_a_cancelled_push_sends_no_further_layer(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages may change as soon as cancel() has returned, also while the receiver is late to take them."""
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [7, 8], 20)
    push = a.pool.push(to_b, inbox.ticket, [1, 2])
    real = _push.finish

    def late(work: Any, transfer: Any) -> None:
        real(work, transfer)
        push.cancel()  # when it is too late to withdraw the operation

    monkeypatch.setattr(_push, "finish", late)
    push.ready(0)
    for one in (push, inbox):
        with pytest.raises(hmc.HmcCancelledError):
            one.wait(SOON)
    assert inbox.layers == []


class Unread:
    """A peer that takes messages, and completes no send while it is stopped."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.done = False
        self.left: Any = None  # ends the posted receive

    def irecv(self, words: Any, tag: int) -> Any:
        work = SimpleNamespace(error=lambda: hmc.PeerLostError("as a peer that has left"))
        work.add_done_callback = lambda call: setattr(self, "left", lambda: call(work))
        return work

    def isend(self, words: Any, tag: int) -> Any:
        self.sent.append(words)
        return self


def test_a_stopped_peer_holds_up_answers_to_no_other_one() -> None:
    left: list[int] = []
    listener = _listener.Listener(5, lambda: left.append(1))
    stopped, other = Unread(), Unread()
    for peer in (stopped, other):
        listener.watch(peer)  # type: ignore[arg-type]
    stop = Record(STOP, 7, 9)
    for _ in range(2 * _listener._MOST_ANSWERS):
        listener.refuse(stopped, stop)  # type: ignore[arg-type]
    listener.refuse(other, stop)  # type: ignore[arg-type]
    assert len(stopped.sent) == _listener._MOST_ANSWERS
    assert [Record.decode(words).kind for words in other.sent] == [ABORT]
    stopped.done = True
    listener.refuse(stopped, stop)  # type: ignore[arg-type]
    assert len(stopped.sent) == _listener._MOST_ANSWERS + 1
    stopped.left()
    listener.refuse(stopped, stop)  # type: ignore[arg-type]
    assert left == [1]
    assert list(listener._answers) == [other]


class Stream:
    """A stream whose work is over when the test says so."""

    reached = False


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setattr(_cache.Cache, "marks", lambda _, stream: [] if stream is None else [stream])
    return Stream()


def error_of(call: Callable[[], Any]) -> type[Exception] | None:
    try:
        call()
    except hmc.HmcError as error:
        return type(error)
    return None


def test_a_pull_keeps_its_lease_behind_a_stream(kv_pair: Any, stuck: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pull, "_HEARTBEAT", 0.05)
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [1, 2], seconds=600)
    pull = b.pool.pull(to_a, lease.ticket, [3, 4], stream=stuck)
    for _ in range(3):
        before, until = lease.expires, time.monotonic() + SOON
        while lease.expires == before:
            assert time.monotonic() < until
            time.sleep(0.01)
        lease.expires -= 400  # as if so long had passed: three times it is longer than the lease
    assert not lease.done
    stuck.reached = True
    pull.wait(SOON)
    assert lease.wait(SOON) == "read"


@pytest.mark.parametrize("way", ["sender", "timeout", "cancel", "free", "leaves"])
def test_a_receive_behind_a_stuck_stream_ends(kv_pair: Any, stuck: Any, way: str) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [3, 4], 32, session="t", timeout=1 if way == "timeout" else None, stream=stuck)
    push = a.pool.push(to_b, inbox.ticket, [1, 2])
    with contextlib.suppress(hmc.HmcError):  # the receive may be over
        push.ready(0)
    if way != "timeout":
        time.sleep(0.2)
        assert not inbox.done
        end = {"sender": push.cancel, "cancel": inbox.cancel, "free": lambda: b.pool.free("t"), "leaves": a.ctx.close}[way]
        end()
    ends = {"timeout": hmc.HmcTimeoutError, "leaves": hmc.ClosedError}
    assert error_of(lambda: inbox.wait(SOON)) == ends.get(way, hmc.HmcCancelledError)
    assert push.error() is not None or error_of(lambda: push.wait(SOON)) is not None
    assert b.pool.counters()["pushes_open"] == 0


def test_a_pull_and_a_lease_behind_a_stuck_stream_end_with_the_peer(
    kv_pair: Any, stuck: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pull, "_HEARTBEAT", 60.0)  # a heartbeat into the closed pool raises LeaseExpiredError
    hold, holds = _pull.Pull._hold, threading.Event()
    monkeypatch.setattr(_pull.Pull, "_hold", lambda *given: holds.set() or hold(*given))
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    pull = b.pool.pull(to_a, a.pool.lease("s", [1, 2]).ticket, [3, 4], stream=stuck)
    found: list[Any] = []
    lends = threading.Thread(target=lambda: found.append(error_of(lambda: b.pool.lease("t", [0], peer=to_a, stream=stuck))))
    lends.start()
    assert holds.wait(SOON)
    time.sleep(0.2)
    assert not pull.done
    assert not found
    a.close()
    assert error_of(lambda: pull.wait(SOON)) == hmc.PeerLostError
    lends.join(SOON)
    assert found == [hmc.PeerLostError]


def test_closing_a_pool_ends_a_lease_behind_a_stuck_stream(kv_pair: Any, stuck: Any) -> None:
    _, b, _, _ = kv_pair(*PAIRS[0])
    found: list[Any] = []
    lends = threading.Thread(target=lambda: found.append(error_of(lambda: b.pool.lease("t", stream=stuck))))
    b.pool.allocate("t", 40)
    lends.start()
    time.sleep(0.2)
    assert not found
    b.pool.close(SOON)
    lends.join(SOON)
    assert found == [hmc.ClosedError]


def test_closing_a_pool_closes_its_scratch_by_the_deadline(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is stopped may hold up the end of a registration."""
    a, _, _, _ = kv_pair(*PAIRS[0])
    given: list[float | None] = []
    closed: list[int] = []

    class Held:
        device = "cpu"

        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

        def close(self, timeout: float | None) -> None:
            given.append(timeout)
            if len(given) == 2:
                raise hmc.HmcTimeoutError("a peer may still access it")
            closed.append(self.nbytes)

    for nbytes in (1 << 12, 1 << 13, 1 << 14):
        a.pool.scratch.give(Held(nbytes))
    with pytest.raises(hmc.HmcTimeoutError, match="may still access"):
        a.pool.close(2)
    a.pool.close(3)
    a.pool.close(0)
    assert set(closed) == {1 << 12, 1 << 13, 1 << 14}
    assert all(timeout is not None and timeout <= 3 for timeout in given)
    assert all(timeout is not None and timeout <= 2 for timeout in given[:2])
    assert a.pool.scratch.spare == 0
