"""Coroutines: event-driven, cancelled at once, nothing lost, no thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patterns import pattern

import hmc

ROUNDS = 20


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels; the task ends with CancelledError and without waiting for anything."""
    start = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - start < 30


@dataclass
class Door:
    """Who raises notifications and who waits for them, through one of the three classes."""

    notify: Callable[[Any], None]
    wait_async: Callable[..., Any]
    wait: Callable[..., None]
    notifications_async: Callable[..., Any]
    notifications: Callable[..., list[tuple[int, bytes]]]


@pytest.fixture(params=["Peer", "Member", "Communicator"])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    if request.param == "Peer":
        with hmc.Context() as a, hmc.Context() as b:
            ab = a.connect(b.addresses[0], timeout=20)
            ba = b.accept(timeout=20)
            yield Door(ab.notify, ba.wait_notify_async, ba.wait_notify, ba.notifications_async, ba.notifications)
        return
    with hmc.init(rank=0, size=1) as comm:
        one = comm if request.param == "Communicator" else comm.local[0]
        yield Door(
            lambda what: one.notify(0, what),
            lambda *a, **k: one.wait_notify_async(0, *a, **k),
            lambda *a, **k: one.wait_notify(0, *a, **k),
            one.notifications_async,
            one.notifications,
        )


@pytest.fixture
def pair() -> Iterator[tuple[hmc.Context, hmc.Context, hmc.Peer, hmc.Peer]]:
    with hmc.Context() as a, hmc.Context() as b:
        ab = a.connect(b.addresses[0], timeout=20)
        yield a, b, ab, b.accept(timeout=20)


def test_deadlines_expire_beside_pending_waits(door: Door, pair: Any) -> None:
    *_, ab, _ba = pair

    async def job() -> None:
        before = threads()
        pending = [asyncio.ensure_future(door.wait_async(i)) for i in range(64)]
        await asyncio.sleep(0)
        for call in (
            ab.lookup_async("nothing", timeout=0.2),
            ab.wait_notify_async(1, timeout=0.2),
            pair[0].accept_async(timeout=0.2),
        ):
            start = time.monotonic()
            with pytest.raises(hmc.HmcTimeoutError):
                await call
            assert time.monotonic() - start < 30
        assert await ab.notifications_async(timeout=0.2) == []
        assert threads() <= before + 1  # the Context's own
        for i in range(64):
            door.notify(i)
        await asyncio.wait_for(asyncio.gather(*pending), 20)

    asyncio.run(job())


@pytest.mark.parametrize("completed", [False, True])
def test_cancelled_waits_consume_nothing(door: Door, completed: bool) -> None:
    """`completed`: the notification is there before the cancellation, and the task has not run yet."""

    async def job() -> None:
        for i in range(ROUNDS):
            waits = [asyncio.ensure_future(door.wait_async(7, 3)), asyncio.ensure_future(door.notifications_async(timeout=None))]
            await asyncio.sleep(0.005)

            def raise_all(number: int) -> None:
                for _ in range(3):
                    door.notify(7)
                door.notify(b"first %d" % number)

            if completed:
                raise_all(i)
                time.sleep(0.02)  # noqa: ASYNC251 the loop does not run
            for wait in waits:
                await cancelled(wait)
            if not completed:
                raise_all(i)
            door.notify(b"second %d" % i)
            door.wait(7, 3, timeout=20)
            with pytest.raises(hmc.HmcTimeoutError):
                door.wait(7, 1, timeout=0)
            got: list[bytes] = []
            while len(got) < 2:
                got += [payload for _, payload in door.notifications(timeout=20)]
            assert got == [b"first %d" % i, b"second %d" % i]

    asyncio.run(job())


@pytest.mark.parametrize("completed", [False, True])
def test_cancelled_accepts_lose_no_peer(completed: bool) -> None:
    async def job() -> None:
        with hmc.Context() as server:
            for i in range(ROUNDS // 2):
                first = asyncio.ensure_future(server.accept_async())
                await asyncio.sleep(0.005)
                with hmc.Context(name=f"client {i}") as client:
                    if completed:
                        client.connect(server.addresses[0], timeout=20)
                        time.sleep(0.02)  # noqa: ASYNC251 the loop does not run
                    await cancelled(first)
                    if not completed:
                        client.connect(server.addresses[0], timeout=20)
                    assert (await server.accept_async(timeout=20)).name == f"client {i}"

    asyncio.run(job())


def test_waits_are_served_in_turn(pair: Any) -> None:
    *_, ab, ba = pair

    async def job() -> None:
        order: list[int] = []

        async def wait(number: int) -> None:
            await ba.wait_notify_async(5, 2)
            order.append(number)

        tasks = []
        for i in range(10):
            tasks.append(asyncio.ensure_future(wait(i)))
            await asyncio.sleep(0)
        await cancelled(tasks.pop(3))
        for _ in range(18):
            ab.notify(5)
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert order == [0, 1, 2, 4, 5, 6, 7, 8, 9]

    asyncio.run(job())


def test_ten_thousand_pending_waits(pair: Any) -> None:
    _, b, ab, ba = pair
    count = 10_000

    async def job() -> None:
        await ba.wait_notify_async(1, 0)
        before = threads()
        waits = [asyncio.ensure_future(ba.wait_notify_async(i % 4000, timeout=600)) for i in range(count - 10)]
        waits += [asyncio.ensure_future(b.accept_async()) for _ in range(5)]
        waits += [asyncio.ensure_future(ba.notifications_async(timeout=None)) for _ in range(5)]
        await asyncio.sleep(0)
        assert threads() <= before + 1
        ab.notify(3999)
        await asyncio.wait_for(waits[3999], 30)
        start = time.monotonic()
        for wait in waits:
            wait.cancel()
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert time.monotonic() - start < 30
        assert sum(isinstance(one, asyncio.CancelledError) for one in results) == count - 1
        assert threads() <= before + 1
        ab.notify(17)
        await ba.wait_notify_async(17, timeout=20)

    asyncio.run(job())


@pytest.mark.parametrize(("transport", "ptrace"), [("shm", "1"), ("shm", "0"), ("tcp", "1")])
def test_cancelled_receives_are_not_written(run_script: Callable[..., str], transport: str, ptrace: str) -> None:
    run_script(
        f"""
        import asyncio, random, time

        async def job():
            with hmc.Context(transports="{transport}") as a, hmc.Context(transports="{transport}") as b:
                ab = a.connect(b.addresses[0], timeout=20)
                ba = b.accept(timeout=20)
                source = pattern(4 << 20, 5)
                chance = random.Random(3)
                early = 0
                for i in range(65):
                    target = pattern(4 << 20, 6)
                    untouched = target.copy()
                    async def receive():
                        await ba.irecv(target, tag=i)
                    task = asyncio.ensure_future(receive())
                    await asyncio.sleep(0)
                    sending = ab.isend(source, tag=i)
                    end = time.monotonic() + chance.uniform(0, 0.003)
                    while time.monotonic() < end:
                        pass
                    task.cancel()
                    try:
                        await asyncio.wait_for(asyncio.shield(task), 20)
                    except asyncio.CancelledError:
                        pass
                    after = target.copy()
                    early += not np.array_equal(after, source)
                    await asyncio.sleep(0.004)
                    assert np.array_equal(target, after), f"round {{i}}: written after CancelledError"
                    try:
                        sending.cancel()
                    except hmc.HmcError:
                        pass
                print("early", early)

        asyncio.run(job())
        """,
        {"HMC_SHM_PTRACE": ptrace},
    )


def test_lookup_import_connect_and_notify(pair: Any) -> None:
    a, b, ab, ba = pair

    async def job() -> None:
        waiting = asyncio.ensure_future(ab.lookup_async("later"))
        given_up = asyncio.ensure_future(ab.lookup_async("later"))
        own = asyncio.ensure_future((await b.connect_async(b.addresses[0])).lookup_async("later", timeout=20))
        await asyncio.sleep(0.02)
        await cancelled(given_up)
        target = b.buffer(4096)
        b.publish("later", target)
        remote = await asyncio.wait_for(waiting, 20)
        again = await ab.import_buffer_async(target.descriptor(), timeout=20)
        assert len(remote) == len(again) == len(await own) == 4096
        source = a.register(pattern(4096, 4))
        await ab.put(source, remote)
        assert np.array_equal(target.numpy(), pattern(4096, 4))
        await ab.notify_async(3, timeout=20)
        await ab.notify_async(b"text", timeout=20)
        await ba.wait_notify_async(3, timeout=20)
        assert await ba.notifications_async(timeout=20) == [(-1, b"text")]
        target.close()
        with pytest.raises(hmc.HmcError):
            await ab.import_buffer_async(target.descriptor(), timeout=20)
        with pytest.raises(hmc.HmcError):
            await a.connect_async("unix:/nowhere/at/all", timeout=20)

    asyncio.run(job())


def test_notify_times_out_and_sends_nothing() -> None:
    with hmc.Context() as a, hmc.Context(progress="manual") as b:
        joined = threading.Event()

        def drive() -> None:
            while not joined.is_set():
                b.progress()

        driver = threading.Thread(target=drive)
        driver.start()
        ab = a.connect(b.addresses[0], timeout=20)
        ba = b.accept(timeout=20)
        joined.set()
        driver.join()
        sent = 0
        full = False
        while not (full and sent > 4096):  # a notification in between may wait for this process itself
            assert sent < 100_000
            try:
                ab.notify(b"%8d" % sent * 100, timeout=0.2)
                sent += 1
                full = False
            except hmc.HmcTimeoutError as error:
                full = "nothing was sent" in str(error)

        async def job() -> None:
            with pytest.raises(hmc.HmcTimeoutError):
                await ab.notify_async(b"late", timeout=0.1)
            task = asyncio.ensure_future(ab.notify_async(b"never"))
            await asyncio.sleep(0.01)
            await cancelled(task)

        asyncio.run(job())
        got: list[bytes] = []
        while len(got) < sent:
            got += [payload for _, payload in ba.notifications(timeout=20)]
        assert got == [b"%8d" % i * 100 for i in range(sent)]
        ab.notify(b"last", timeout=20)
        assert ba.notifications(timeout=20) == [(-1, b"last")]


def test_a_wait_that_no_loop_can_watch_consumes_nothing(door: Door) -> None:
    class Blind(asyncio.SelectorEventLoop):
        def add_reader(self, *_: Any) -> None:
            raise NotImplementedError

    loop = Blind()
    with pytest.raises(NotImplementedError):
        loop.run_until_complete(door.wait_async(5))
    loop.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        door.wait_async(5).send(None)
    door.notify(5)
    door.wait(5, timeout=20)


def test_a_closed_context_ends_the_waits(pair: Any) -> None:
    _, b, _, ba = pair

    async def job() -> None:
        waits = [
            asyncio.ensure_future(one)
            for one in (b.accept_async(), ba.lookup_async("x"), ba.wait_notify_async(1), ba.notifications_async(timeout=None))
        ]
        await asyncio.sleep(0.01)
        await asyncio.get_running_loop().run_in_executor(None, b.close)
        for one in waits:
            with pytest.raises(hmc.ClosedError):
                await asyncio.wait_for(one, 20)

    asyncio.run(job())
