"""1000 sessions of hmc.kv that are aborted in any phase, idle and beside busy processes: nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kv_process import OTHER, this_process
from kv_sides import Side, connected, expected, same

import hmc

SESSIONS = 1000
TOGETHER = 4  # sessions that are open at once; blocks for six
PAIR = ("L=3 B=36 H=4 N=16 (kv D=32) bf16", "L=3 B=18 H=4 N=32 (kv D=32) bf16")


@pytest.fixture(params=["idle", "busy"])
def load(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two processes that take the CPU all the time, or none."""
    count = 2 if request.param == "busy" else 0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for process in busy:
        process.kill()
        process.wait(20)


class Session:
    """One session that begins, goes on for a random while, and is aborted somewhere by one side, or ends."""

    def __init__(self, number: int, rng: random.Random, a: Side, b: Side, to_a: Any, to_b: Any) -> None:
        self.name = f"s{number}"
        self.rng, self.a, self.b, self.to_a, self.to_b = rng, a, b, to_a, to_b
        self.tokens = rng.randint(1, 96)
        self.mine = a.pool.allocate(self.name, self.tokens)
        self.theirs = b.pool.allocate(self.name, self.tokens)
        self.ends: list[Any] = [lambda: None, lambda: a.pool.free(self.name), lambda: b.pool.free(self.name)]
        rng.choice([self.lend, self.pull, self.offer, self.push, self.push, self.push])()

    def pause(self) -> None:
        if self.rng.random() < 0.5:
            time.sleep(self.rng.random() * 0.002)

    def lend(self) -> None:
        lease = self.a.pool.lease(self.name, tokens=self.tokens, seconds=self.rng.choice([0.01, 30]))
        self.ends.append(lease.release)

    def pull(self) -> None:
        lease = self.a.pool.lease(self.name, tokens=self.tokens, peer=self.to_b)
        pull = self.b.pool.pull(self.to_a, lease.ticket, session=self.name)
        self.ends += [lease.release, pull.cancel, lambda: pull.wait(20)]

    def offer(self) -> None:
        timeout = self.rng.choice([None, 0.0, 0.001])
        inbox = self.b.pool.receive(self.to_a, tokens=self.tokens, session=self.name, timeout=timeout)
        self.ends.append(inbox.cancel)

    def push(self) -> None:
        timeout = self.rng.choice([None, None, None, 0.002])
        inbox = self.b.pool.receive(self.to_a, tokens=self.tokens, session=self.name, timeout=timeout)
        if self.rng.random() < 0.1:
            inbox.cancel()  # before the sender begins
        push = self.a.pool.push(self.to_b, inbox.ticket, session=self.name, credits=self.rng.randint(1, 4))
        self.ends += [push.cancel, inbox.cancel, push.cancel, inbox.cancel]
        with contextlib.suppress(hmc.HmcError):
            for layer in range(self.rng.randint(0, 3)):
                self.pause()
                push.ready(layer, timeout=20)
                if self.rng.random() < 0.3:
                    inbox.wait_layer(layer, timeout=20)
            if self.rng.random() < 0.3:
                push.close(timeout=0 if self.rng.random() < 0.7 else 20)

    def abort(self) -> None:
        self.pause()
        with contextlib.suppress(hmc.HmcError):
            self.rng.choice(self.ends)()
        self.pause()
        sides = [self.a, self.b]
        self.rng.shuffle(sides)
        for side in sides:
            side.pool.free(self.name)


def wait_for_blocks(sides: tuple[Side, Side], count: int) -> None:
    deadline = time.monotonic() + 20
    while min(side.pool.free_blocks for side in sides) < count:
        assert time.monotonic() < deadline, [side.pool.counters() for side in sides]
        time.sleep(0.001)


def held(side: Side) -> dict[str, int]:
    """What a side holds: the same before and after."""
    mine = {
        name: side.pool.counters()[name]
        for name in ("leases_held", "transfers", "pushes_open", "blocks_free", "rows_free", "slots_free")
    }
    theirs = {name: side.ctx.counters()[name] for name in ("messages.unread", "messages.unread_bytes")}
    return {
        **mine,
        **theirs,
        "sessions": len(side.pool.blocks.sessions),
        "registrations": side.ctx.counters()["registrations"] - side.pool.scratch.spare,
    }


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("transports", ["shm", "tcp"])
@pytest.mark.timeout(240)
def test_aborted_sessions_leave_nothing(load: None, transports: str) -> None:
    rng = random.Random(transports)
    with connected(*PAIR, transports=transports) as (a, b, to_a, to_b):
        moves(a, b, to_a, to_b)
        before, threads, files = [held(a), held(b)], threading.active_count(), descriptors()
        running: list[Session] = []
        for number in range(SESSIONS):
            if len(running) == TOGETHER:
                running.pop(rng.randrange(TOGETHER)).abort()
            deadline = time.monotonic() + 20
            while True:
                try:
                    running.append(Session(number, rng, a, b, to_a, to_b))
                    break
                except hmc.OutOfMemoryError:  # blocks of aborted sessions drain
                    a.pool.free(f"s{number}")
                    assert time.monotonic() < deadline, [side.pool.counters() for side in (a, b)]
                    time.sleep(0.0005)
        for session in running:
            session.abort()
        deadline = time.monotonic() + 20
        while [held(a), held(b)] != before:
            assert time.monotonic() < deadline, [
                {name: (now[name], then[name]) for name in now if now[name] != then[name]}
                for now, then in zip([held(a), held(b)], before, strict=True)
            ]
            time.sleep(0.01)
        # One thread is the sweeper of leases, the descriptors are spare memory for transfers.
        while threading.active_count() > threads + 1 or descriptors() > files + 16:
            assert time.monotonic() < deadline, (threading.enumerate(), descriptors(), files)
            time.sleep(0.01)
        moves(a, b, to_a, to_b)


def moves(a: Side, b: Side, to_a: Any, to_b: Any) -> None:
    """Both ways still work, with every block of the smaller pool."""
    tokens = min(side.layout.blocks * side.layout.block for side in (a, b))
    for way in ("pull", "push"):
        mine, theirs = a.pool.allocate(way, tokens), b.pool.allocate(way, tokens)
        for array in b.arrays:
            array[:] = np.random.default_rng(len(way)).integers(0, 256, array.size, dtype=np.uint8)
        wanted = expected(a, mine, b, theirs, tokens)
        if way == "pull":
            b.pool.pull(to_a, a.pool.lease(way, mine, tokens).ticket, session=way, tokens=tokens).wait(20)
        else:
            inbox = b.pool.receive(to_a, tokens=tokens, session=way)
            with a.pool.push(to_b, inbox.ticket, session=way) as push:
                for layer in range(3):
                    push.ready(layer, timeout=20)
            inbox.wait(20)
        same(b, wanted)
        a.pool.free(way)
        b.pool.free(way)
        wait_for_blocks((a, b), min(side.layout.blocks for side in (a, b)))


DECODE = """
    import threading
    def go_on(name, transfer, seconds):
        # Aborts the session after a while, or frees it when its transfer has ended.
        if seconds is not None:
            time.sleep(seconds)
            pool.free(name) if number % 2 else transfer.cancel()
        try:
            transfer.wait(30)
        except hmc.HmcError:
            pass
        pool.free(name)
    for number, line in enumerate(sys.stdin):
        given = json.loads(line)
        if "report" in given:
            break
        name = given["name"]
        while True:
            try:
                pool.allocate(name, given["tokens"])
                break
            except hmc.OutOfMemoryError:
                time.sleep(0.001)
        if "ticket" in given:
            transfer = pool.pull(peer, bytes.fromhex(given["ticket"]), session=name)
        else:
            transfer = pool.receive(peer, tokens=given["tokens"], session=name)
            say(ticket=transfer.ticket.hex())
        threading.Thread(target=go_on, args=(name, transfer, given["abort"])).start()
    # What was on its way when a session was aborted is taken in and dropped, also what comes meanwhile.
    nothing = {"transfers": 0, "pushes_open": 0, "blocks_free": layout.blocks, "leases_held": 0, "unread": 0}
    def held():
        found = {**pool.counters(), "unread": ctx.counters()["messages.unread"]}
        return {name: found[name] for name in nothing}
    until = time.monotonic() + 20
    while (found := held()) != nothing and time.monotonic() < until:
        time.sleep(0.01)
    say(**found)
    sys.stdin.readline()
"""


@pytest.mark.timeout(120)
def test_aborted_sessions_of_two_processes_leave_nothing(load: None) -> None:
    rng = random.Random(17)
    with this_process() as mine:
        other = mine.start(OTHER, DECODE)
        for number in range(300):
            name, tokens = f"s{number}", rng.randint(1, 512)
            abort = rng.choice([None, 0, 0.001, 0.003])
            mine.pool.allocate(name, tokens)
            if rng.random() < 0.3:
                lease = mine.pool.lease(name, tokens=tokens, seconds=20, peer=other.peer)
                other.tell(name=name, tokens=tokens, abort=abort, ticket=lease.ticket.hex())
                time.sleep(rng.random() * 0.002)
            else:
                other.tell(name=name, tokens=tokens, abort=abort)
                push = mine.pool.push(other.peer, bytes.fromhex(other.read()["ticket"]), session=name, credits=rng.randint(1, 4))
                with contextlib.suppress(hmc.HmcError):
                    for layer in range(rng.randint(0, 4)):
                        push.ready(layer, timeout=20)
                    if rng.random() < 0.5:
                        push.close(timeout=20)
                    elif rng.random() < 0.5:
                        push.cancel()
            mine.pool.free(name)
            deadline = time.monotonic() + 20
            while mine.pool.free_blocks < 16:
                assert time.monotonic() < deadline, mine.pool.counters()
                time.sleep(0.001)
        other.tell(report=1)
        assert other.read() == {"transfers": 0, "pushes_open": 0, "blocks_free": 32, "leases_held": 0, "unread": 0}
        deadline = time.monotonic() + 20
        wanted = {"blocks_free": 64, "transfers": 0, "leases_held": 0, "pushes_open": 0, "slots_free": 1024, "rows_free": 128}
        while not wanted.items() <= mine.pool.counters().items() or mine.ctx.counters()["messages.unread"]:
            assert time.monotonic() < deadline, (mine.pool.counters(), mine.ctx.counters())
            time.sleep(0.01)
