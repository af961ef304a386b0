"""SIGSTOP of one side of a transfer of hmc.kv: the other side's cancel, timeouts and close work, and nothing waits for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kv_process import OTHER, TEXT, this_process
from kv_sides import PAIRS

import hmc
from hmc.kv import _pull, _remote

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
        (_pull.Pull, "_check"),
        (_remote.RemotePool, "write_words"),  # everything was read: only the lease is to be ended
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
    try:
        pull.wait(SOON)  # over shm the reader copies by itself
    except hmc.HmcCancelledError:
        pass
    mine.pool.free("s")
    assert mine.pool.free_blocks == BLOCKS
    other.kill(signal.SIGCONT)
    assert other.read() == {"reason": "read"}


def test_a_push_to_a_stopped_receiver_ends_the_receive_when_it_goes_on(mine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = mine.start(mine.text, RECEIVER, HMC_TRANSPORTS=mine.transports)
    ticket = bytes.fromhex(other.read()["ticket"])
    mine.pool.allocate("s", BLOCKS * 32)
    real = _remote.RemotePool.__init__

    def impatient(self: Any, peer: Any, pool: Any, scratch: Any, timeout: float) -> None:
        real(self, peer, pool, scratch, 0.3)

    monkeypatch.setattr(_remote.RemotePool, "__init__", impatient)
    other.kill(signal.SIGSTOP)
    push = mine.pool.push(other.peer, ticket, session="s")
    with pytest.raises(hmc.HmcTimeoutError):
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
    assert a.ctx.counters()["messages.unread"] == b.ctx.counters()["messages.unread"] == 0


def test_a_cancelled_push_sends_no_further_layer(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages may change as soon as cancel() has returned, also while the receiver is late to take them."""
    from hmc.kv import _push

    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    inbox = b.pool.receive(to_a, [7, 8], 20)
    push = a.pool.push(to_b, inbox.ticket, [1, 2])
    real = _push.finish

    def late(work: Any, transfer: Any = None) -> None:
        real(work)
        push.cancel()  # when it is too late to withdraw the operation

    monkeypatch.setattr(_push, "finish", late)
    push.ready(0)
    for one in (push, inbox):
        with pytest.raises(hmc.HmcCancelledError):
            one.wait(SOON)
    assert inbox.layers == []
