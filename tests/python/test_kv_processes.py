"""hmc.kv between processes: kill -9 of either side, a stopped reader, a prefill that restarts, another user's key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hmc
from hmc import kv, layout
from hmc.layout import Layout

TEXT = "L=4 B=64 kv H=4 N=32 D=64 bf16"
OTHER = "L=4 B=32 H=4 N=64 (kv D=64) bf16"
PRELUDE = """
    import json, sys, time
    import numpy as np
    import hmc
    from hmc import kv
    from hmc.layout import Layout
    address, text = sys.argv[1:3]
    layout = Layout(text)
    array = np.random.default_rng(7).integers(0, 256, layout.buffer_bytes, dtype=np.uint8)
    ctx = hmc.Context()
    pool = kv.Pool(ctx, array, layout)
    peer = ctx.connect(address, timeout=20)
    def say(**what):
        print(json.dumps(what), flush=True)
"""


class Process:
    """Another process with a pool, which runs a program and answers in lines of JSON."""

    def __init__(self, ctx: hmc.Context, text: str, program: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(program), ctx.addresses[0], text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",  # not the source tree
            env={**os.environ, **environment},
        )
        self.peer = ctx.accept(timeout=30)

    def tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the other process ended"
        return json.loads(line)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)


@pytest.fixture
def mine() -> Iterator[Any]:
    """A Context with a pool in this process."""
    ctx = hmc.Context()
    made = Layout(TEXT)
    array = np.random.default_rng(3).integers(0, 256, made.buffer_bytes, dtype=np.uint8)
    pool = kv.Pool(ctx, array, made)
    others: list[Process] = []

    class Mine:
        pass

    one: Any = Mine()
    one.ctx, one.pool, one.array, one.layout = ctx, pool, array, made

    def start(text: str, program: str) -> Process:
        others.append(Process(ctx, text, program))
        return others[-1]

    one.start = start
    yield one
    for other in others:
        other.close()
    pool.close()
    ctx.close()


LENDER = """
    lease = pool.lease("s", list(range(layout.blocks)), seconds=60)
    say(ticket=lease.ticket.hex())
    sys.stdin.readline()
    say(reason=lease.wait(20))
    sys.stdin.readline()
"""
READER = """
    from hmc.kv import _pull
    _pull.Pull._beat = lambda self, remote: (say(beat=1), time.sleep(0.05))
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
        real(self, remote)

    monkeypatch.setattr(_pull.Pull, "_beat", kill)
    blocks = mine.pool.allocate("s", 2048)
    began = time.monotonic()
    pull = mine.pool.pull(other.peer, ticket, blocks, session="s")
    with pytest.raises(hmc.PeerLostError):
        pull.wait(20)
    assert time.monotonic() - began < 15
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
    assert lease.wait(10) == "peer lost"
    assert mine.pool.free_blocks == len(blocks)


def test_decode_killed_before_it_reads_is_an_expiry(mine: Any) -> None:
    other = mine.start(OTHER, READER)
    mine.pool.allocate("s", 2048)
    lease = mine.pool.lease("s", seconds=0.5)
    other.kill()
    assert lease.wait(10) == "expired"
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
    began = time.monotonic()
    with pytest.raises(hmc.LeaseExpiredError, match="restarted"):
        pull.wait(30)
    assert time.monotonic() - began < 1
