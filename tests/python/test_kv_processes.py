"""hmc.kv between processes: kill -9 of either side, a stopped reader, a prefill that restarts."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from device_arrays import DEVICES
from kv_process import OTHER, TEXT, this_process

import hmc
from hmc import layout
from hmc.kv._wire import LEASE, Ticket
from hmc.layout import Layout

SOON = 20  # seconds; the promise is one, on a machine that is not overloaded
# Between a device and memory that it does not map, both processes copy.
STAGED = len({name.partition(":")[0] for name in DEVICES}) > 1


@pytest.fixture
def mine() -> Iterator[Any]:
    with this_process() as one:
        yield one


LENDER = """
    lease = pool.lease("s", list(range(layout.blocks)), seconds=60)
    say(ticket=lease.ticket.hex())
    sys.stdin.readline()
    say(reason=lease.wait(20))
    sys.stdin.readline()
"""
READER = """
    from hmc.kv import _pull
    _pull.Pull._beat = lambda self, remote: (say(beat=1), time.sleep(600))  # stays in the pull until it is killed
    ticket = bytes.fromhex(json.loads(sys.stdin.readline())["ticket"])
    pool.pull(peer, ticket, list(range(layout.blocks))).wait(60)
    say(done=1)
    sys.stdin.readline()
"""


def reference(array: Any) -> Any:
    """What the other process's array holds at the start."""
    return np.random.default_rng(7).integers(0, 256, array.size, dtype=np.uint8)


@pytest.mark.parametrize("text", [TEXT, OTHER])
def test_pull_from_another_process(mine: Any, text: str) -> None:
    other = mine.start(text, LENDER)
    ticket = bytes.fromhex(other.read()["ticket"])
    source = Layout(text)
    wanted = mine.array.copy()
    layout.convert(source, reference(mine.array), list(range(source.blocks)), mine.layout, wanted, list(range(64)), 2048)
    mine.pool.pull(other.peer, ticket, list(range(64))).wait(30)
    assert np.array_equal(mine.array, wanted)
    other.tell(go=1)
    assert other.read() == {"reason": "read"}


@pytest.mark.parametrize("text", [TEXT, OTHER])
def test_prefill_killed_during_a_pull(mine: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmc.kv import _pull

    other = mine.start(text, LENDER)
    ticket = bytes.fromhex(other.read()["ticket"])
    real = _pull.Pull._beat

    def kill(self: Any, remote: Any) -> None:
        other.kill()
        other.process.wait(20)
        until = time.monotonic() + SOON
        while other.peer.alive:  # what is mapped can be read until then
            assert time.monotonic() < until
            time.sleep(0.001)
        real(self, remote)

    monkeypatch.setattr(_pull.Pull, "_beat", kill)
    blocks = mine.pool.allocate("s", 2048)
    pull = mine.pool.pull(other.peer, ticket, blocks, session="s")
    with pytest.raises(hmc.PeerLostError):
        pull.wait(20 + SOON)
    mine.pool.free("s")
    assert mine.pool.free_blocks == 64


def test_decode_killed_during_a_pull(mine: Any) -> None:
    other = mine.start(OTHER, READER)
    blocks = mine.pool.allocate("s", 2048)
    lease = mine.pool.lease("s", seconds=60, peer=other.peer)
    assert mine.pool.free_blocks == 0
    other.tell(ticket=lease.ticket.hex())
    assert other.read() == {"beat": 1}
    other.kill()
    assert lease.wait(SOON) == "peer lost"
    assert mine.pool.free_blocks == len(blocks)


def test_decode_killed_before_it_reads_is_an_expiry(mine: Any) -> None:
    other = mine.start(OTHER, READER)
    mine.pool.allocate("s", 2048)
    lease = mine.pool.lease("s", seconds=0.5)
    other.kill()
    assert lease.wait(SOON) == "expired"
    assert mine.pool.free_blocks == 64


PUSHER = """
    ticket = bytes.fromhex(json.loads(sys.stdin.readline())["ticket"])
    push = pool.push(peer, ticket, list(range(layout.blocks)), credits=1)
    push.ready(0)
    push.ready(1)
    say(ready=1)
    sys.stdin.readline()
"""
RECEIVER = """
    inbox = pool.receive(peer, list(range(layout.blocks)), session="s")
    say(ticket=inbox.ticket.hex())
    inbox.wait_layer(0, 30)
    say(layer=0)
    sys.stdin.readline()
    inbox.wait(20)
"""


@pytest.mark.parametrize("text", [TEXT, OTHER])
def test_prefill_killed_during_a_push(mine: Any, text: str) -> None:
    other = mine.start(text, PUSHER)
    blocks = mine.pool.allocate("s", 2048)
    inbox = mine.pool.receive(other.peer, blocks, session="s")
    other.tell(ticket=inbox.ticket.hex())
    inbox.wait_layer(0, 30)
    other.kill()
    with pytest.raises(hmc.PeerLostError):
        inbox.wait(20)
    with pytest.raises(hmc.PeerLostError):
        inbox.wait_layer(3, 20)
    mine.pool.free("s")
    assert mine.pool.free_blocks == 64


@pytest.mark.parametrize("text", [TEXT, OTHER])
def test_decode_killed_during_a_push(mine: Any, text: str) -> None:
    other = mine.start(text, RECEIVER)
    ticket = bytes.fromhex(other.read()["ticket"])
    mine.pool.allocate("s", 2048)
    push = mine.pool.push(other.peer, ticket, session="s")
    push.ready(0)
    assert other.read() == {"layer": 0}
    other.kill()
    with pytest.raises(hmc.PeerLostError):
        push.wait(20)
    with pytest.raises(hmc.PeerLostError):
        push.ready(1)
    mine.pool.free("s")
    assert mine.pool.free_blocks == 64


def test_a_stopped_sender_keeps_the_pages_until_it_goes_on(mine: Any) -> None:
    other = mine.start(TEXT, PUSHER)
    blocks = mine.pool.allocate("s", 2048)
    inbox = mine.pool.receive(other.peer, blocks, session="s")
    other.tell(ticket=inbox.ticket.hex())
    inbox.wait_layer(1, 30)
    other.kill(signal.SIGSTOP)
    mine.pool.free("s")  # cancels the receive
    with pytest.raises(hmc.HmcTimeoutError):
        inbox.wait(0.5)
    assert mine.pool.free_blocks == 0
    other.kill(signal.SIGCONT)
    with pytest.raises((hmc.HmcCancelledError, hmc.PeerLostError)):
        inbox.wait(20)
    assert mine.pool.free_blocks == 64


def test_a_prefill_that_restarts_has_other_leases(mine: Any) -> None:
    first = mine.start(TEXT, LENDER)
    ticket = bytes.fromhex(first.read()["ticket"])
    first.kill()
    first.process.wait(20)
    second = mine.start(TEXT, LENDER)
    second.read()
    pull = mine.pool.pull(second.peer, ticket, list(range(64)))
    with pytest.raises(hmc.LeaseExpiredError, match="restarted"):
        pull.wait(20)  # at once, not after a timeout of the lookup


def test_a_stopped_receiver_does_not_keep_the_senders_pages(mine: Any) -> None:
    """Unless they are staged: the receiver itself copies what is staged."""
    other = mine.start(TEXT, RECEIVER)
    ticket = bytes.fromhex(other.read()["ticket"])
    mine.pool.allocate("s", 2048)
    push = mine.pool.push(other.peer, ticket, session="s", credits=2)
    push.ready(0)
    assert other.read() == {"layer": 0}
    other.kill(signal.SIGSTOP)
    written = mine.pool.counters("s")["bytes_written"]
    with pytest.raises(hmc.HmcTimeoutError, match="behind"):
        for layer in (1, 2, 3, 1):
            push.ready(layer, timeout=0.2)
    until = time.monotonic() + SOON
    while mine.pool.counters("s")["bytes_written"] == written:  # the next layer is in flight
        assert time.monotonic() < until
        time.sleep(0.001)
    mine.pool.free("s")
    if STAGED:
        with pytest.raises(hmc.HmcTimeoutError):
            push.wait(0.5)
        assert mine.pool.free_blocks == 0
        other.kill(signal.SIGCONT)
    with pytest.raises(hmc.HmcCancelledError):
        push.wait(20)
    assert mine.pool.free_blocks == 64
    other.kill(signal.SIGCONT)


def test_a_stopped_owner_does_not_delay_a_reader(mine: Any) -> None:
    """The reader maps or copies the pages by itself: no call of the owner is involved once its pool is known. Unless it stages."""
    other = mine.start(TEXT, LENDER)
    ticket = bytes.fromhex(other.read()["ticket"])
    mine.pool.remote(other.peer, Ticket.decode(ticket, LEASE).pool)
    other.kill(signal.SIGSTOP)
    try:
        pull = mine.pool.pull(other.peer, ticket, list(range(64)))
        if STAGED:
            with pytest.raises(hmc.HmcTimeoutError):
                pull.wait(0.5)
            other.kill(signal.SIGCONT)
        pull.wait(20)
        assert np.array_equal(mine.array, reference(mine.array))
    finally:
        other.kill(signal.SIGCONT)
