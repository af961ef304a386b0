"""kill -9 of one side of a transfer of hmc.kv, in every phase: the other side gets an error and has its blocks back."""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kv_process import OTHER, TEXT, this_process

import hmc
from hmc.kv import _pull, _push, _remote

BLOCKS = 64
SOON = 20  # seconds; the promise is one, on a machine that is not overloaded


@pytest.fixture(params=[("shm", OTHER), ("tcp", TEXT)], ids=["shm-converted", "tcp-direct"])
def mine(request: pytest.FixtureRequest) -> Iterator[Any]:
    transports, text = request.param
    with this_process(transports=transports) as one:
        one.transports, one.text = transports, text
        yield one


# The other process stops for ever, and says so, in the count-th call of a method.
HALT = """
    from hmc.kv import _leases, _moves, _pool, _pull, _push, _receive, _remote
    _moves.DEVICE_CHUNK = _moves.CHUNK  # several pieces
    given = json.loads(sys.stdin.readline())
    owner, name = given["method"].split(".")
    found = next(getattr(one, owner) for one in (_push, _pull, _receive, _remote) if hasattr(one, owner))
    real, calls = getattr(found, name), []
    def halt(*args, **more):
        calls.append(1)
        if len(calls) == given["call"]:
            say(halted=1)
            time.sleep(600)
        return real(*args, **more)
    setattr(found, name, halt)
    blocks = list(range(layout.blocks))
"""
PUSHER = (
    HALT
    + """
    with pool.push(peer, bytes.fromhex(given["ticket"]), blocks, credits=2) as push:
        for layer in range(4):
            push.ready(layer)
"""
)
READER = (
    HALT
    + """
    pool.pull(peer, bytes.fromhex(given["ticket"]), blocks).wait()
    time.sleep(600)
"""
)
RECEIVER = (
    HALT
    + """
    inbox = pool.receive(peer, blocks)
    say(ticket=inbox.ticket.hex())
    inbox.wait()
    time.sleep(600)
"""
)
LENDER = """
    lease = pool.lease("s", list(range(layout.blocks)), seconds=60)
    say(ticket=lease.ticket.hex())
    time.sleep(600)
"""


def start(mine: Any, program: str, method: str, call: int, ticket: bytes = b"", peer_ready: Any = None) -> Any:
    other = mine.start(mine.text, program, HMC_TRANSPORTS=mine.transports)
    ticket = ticket if peer_ready is None else peer_ready(other.peer)
    other.tell(method=method, call=call, ticket=ticket.hex())
    return other


def check_usable(mine: Any) -> None:
    """Every block is free, and nothing of the session is left."""
    mine.pool.free("s")
    counters = mine.pool.counters()
    assert counters["blocks_free"] == mine.pool.free_blocks == BLOCKS
    assert (counters["leases_held"], counters["transfers"], counters["pushes_open"]) == (0, 0, 0)
    assert counters["rows_free"] == 2 * BLOCKS
    deadline = time.monotonic() + SOON
    while mine.pool._remotes or mine.pool.listener._posted:  # released on the dispatcher thread
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert mine.ctx.counters()["messages.unread"] == 0


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("RemotePool.check_pages", 1),  # before the first record
        ("Push._serve", 1),  # the receiver has the first record
        ("Push._take", 1),  # the receiver has said go
        ("Push._post", 1),
        ("Push._post", 3),
        ("Push._noted", 3),  # a credit, on the thread that hands out records
        ("Push._write", 5),  # all layers are sent, the end is not
        ("Push._take", 2),  # the receiver has accepted: it does not notice the death
    ],
)
def test_sender_of_a_push(mine: Any, method: str, call: int) -> None:
    blocks = mine.pool.allocate("s", BLOCKS * 32)
    inboxes: list[Any] = []

    def offer(peer: Any) -> bytes:
        inboxes.append(mine.pool.receive(peer, blocks, session="s"))
        return bytes(inboxes[0].ticket)

    other = start(mine, PUSHER, method, call, peer_ready=offer)
    assert other.read() == {"halted": 1}
    other.kill()
    if (method, call) == ("Push._take", 2):
        inboxes[0].wait(SOON)
    else:
        with pytest.raises(hmc.PeerLostError):
            inboxes[0].wait(SOON)
        if len(inboxes[0].layers) < 4:
            with pytest.raises(hmc.PeerLostError):
                inboxes[0].wait_layer(3, SOON)
    check_usable(mine)


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("Inbox._serve", 1),  # the pages are offered, the first record is not read
        ("Inbox._begin", 1),
        ("Inbox._check_layers", 1),
        ("Inbox._check_layers", 3),
        ("Inbox._take", 6),  # the end, which is not answered
    ],
)
def test_receiver_of_a_push(mine: Any, method: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_push, "_ANSWER", 600.0)  # a halted receiver does not answer
    mine.pool.allocate("s", BLOCKS * 32)
    other = start(mine, RECEIVER, method, call)
    said = [other.read()]
    if call == 1 and method == "Inbox._serve":
        said.append(other.read())
    ticket = next(bytes.fromhex(one["ticket"]) for one in said if "ticket" in one)
    push = mine.pool.push(other.peer, ticket, session="s", credits=4)
    push._backlog.most = push._backlog._next = 1
    for layer in range(4):
        push.ready(layer)
    with pytest.raises(hmc.HmcTimeoutError):
        push.close(0)
    if len(said) == 1:
        assert other.read() == {"halted": 1}
    other.kill()
    with pytest.raises(hmc.PeerLostError):
        push.wait(SOON)
    with pytest.raises(hmc.PeerLostError):
        push.ready(1)
    check_usable(mine)


def test_a_push_that_sees_the_closed_pool_of_a_dead_receiver(mine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it gets the notice that the receiver is lost."""

    def nothing(*_: Any) -> None:
        time.sleep(0.01)
        raise queue.Empty

    mine.pool.allocate("s", BLOCKS * 32)
    other = start(mine, RECEIVER, "Inbox._begin", 1)
    monkeypatch.setattr(_push, "_ANSWER", 600.0)
    monkeypatch.setattr(_push.Push, "_next", nothing)
    push = mine.pool.push(other.peer, bytes.fromhex(other.read()["ticket"]), session="s")
    assert other.read() == {"halted": 1}
    other.kill()
    with pytest.raises(hmc.PeerLostError):
        push.wait(SOON)
    check_usable(mine)


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("RemotePool.check", 1),
        ("Pull._read", 1),
        ("Pull._beat", 1),
        ("Pull._beat", 2),
        ("Pull._check_generations", 1),
        ("Pull._give_back", 1),  # the pages are read, the lease is not ended
    ],
)
def test_reader_of_a_lease(mine: Any, method: str, call: int) -> None:
    mine.pool.allocate("s", BLOCKS * 32)
    leases: list[Any] = []

    def lend(peer: Any) -> bytes:
        leases.append(mine.pool.lease("s", seconds=60, peer=peer))
        return bytes(leases[0].ticket)

    other = start(mine, READER, method, call, peer_ready=lend)
    assert other.read() == {"halted": 1}
    assert mine.pool.free_blocks == 0
    other.kill()
    assert leases[0].wait(SOON) == "peer lost"
    check_usable(mine)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (_remote, "_described", 1),  # before anything of the pool is known
        (_remote.RemotePool, "check", 1),
        (_pull.Pull, "_read", 1),
        (_pull.Pull, "_beat", 1),
        (_pull.Pull, "_digest_of_lease", 1),  # pages travel
        (_pull.Pull, "_check_generations", 1),  # the pages are read, the generations are not
    ],
)
def test_owner_of_a_lease(mine: Any, owner: Any, name: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    other = mine.start(mine.text, LENDER, HMC_TRANSPORTS=mine.transports)
    ticket = bytes.fromhex(other.read()["ticket"])
    real, killed = getattr(owner, name), []

    def kill(*args: Any, **more: Any) -> Any:
        if not killed:
            other.kill()
            other.process.wait(20)
            killed.append(time.monotonic())
            while other.peer.alive:  # rows that are mapped can be read until then
                assert time.monotonic() < killed[0] + SOON
                time.sleep(0.001)
        return real(*args, **more)

    monkeypatch.setattr(owner, name, kill)
    blocks = mine.pool.allocate("s", BLOCKS * 32)
    pull = mine.pool.pull(other.peer, ticket, blocks, session="s")
    with pytest.raises(hmc.PeerLostError):
        pull.wait(20 + SOON)
    assert killed
    check_usable(mine)


def test_the_survivor_serves_others(mine: Any) -> None:
    """After a death, another process reads the same pages."""
    mine.pool.allocate("s", BLOCKS * 32)
    blocks = list(mine.pool.blocks._sessions["s"].blocks)
    first = mine.pool.lease("s", blocks, seconds=60)
    other = start(mine, READER, "Pull._beat", 1, ticket=first.ticket)
    assert other.read() == {"halted": 1}
    other.kill()
    second = mine.pool.lease("s", blocks, seconds=60)
    survivor = mine.start(
        TEXT,
        """
        pool.pull(peer, bytes.fromhex(json.loads(sys.stdin.readline())["ticket"]), list(range(layout.blocks))).wait(20)
        import hashlib
        say(digest=hashlib.sha256(np.asarray(array).tobytes()).hexdigest())
        time.sleep(600)
        """,
        HMC_TRANSPORTS=mine.transports,
    )
    survivor.tell(ticket=second.ticket.hex())
    wanted = np.ascontiguousarray(np.asarray(mine.array).reshape(4, BLOCKS, -1)[:, blocks])
    assert survivor.read() == {"digest": hashlib.sha256(wanted.tobytes()).hexdigest()}
    assert second.wait(SOON) == "read"
    first.release()
    assert mine.pool.counters("s")["leases"] == 2
