"""Work that a thread carries out: errors are raised as copies, and work that has failed is freed with its last reference."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kv_sides import PAIRS
from weights_pair import Pair

import hmc
from hmc._threaded import ThreadedWork


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def failing(run: Callable[[], None]) -> ThreadedWork:
    work = ThreadedWork("the work")
    work._start(run, "fails")
    return work


def without(work: Any) -> None:
    while not work.done:
        time.sleep(0.001)


def waits(work: Any) -> None:
    """Its frame, which the traceback of the error refers to, refers to the work."""
    for _ in range(2):
        with contextlib.suppress(hmc.HmcError):
            work.wait(20)


def awaits(work: Any) -> None:
    async def main() -> None:
        with contextlib.suppress(hmc.HmcError):
            await work

    asyncio.run(main())


def cancels_its_task(work: Any) -> None:
    async def main() -> None:
        async def one() -> None:
            await work

        task = asyncio.ensure_future(one())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, hmc.HmcError):
            await task

    asyncio.run(main())


def freed(refs: list[Any]) -> bool:
    until = time.monotonic() + 10  # its thread lets go a moment after it has ended
    while any(ref() is not None for ref in refs) and time.monotonic() < until:
        time.sleep(0.001)
    return all(ref() is None for ref in refs)


@pytest.mark.parametrize("end", [without, waits, awaits, cancels_its_task])
@pytest.mark.parametrize("what", ["pull", "pull that cannot import", "push", "receive", "lost receive"])
def test_a_failed_transfer_is_freed_without_the_collector(kv_pair: Any, uncollected: None, what: str, end: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])

    def made() -> list[Any]:
        if what.startswith("pull"):
            lease = a.pool.lease("s", [1])
            lease.release()
            if "import" in what:
                a.pool.close()
            works = [b.pool.pull(to_a, lease.ticket, [1])]
        elif what == "push":
            inbox = b.pool.receive(to_a, [1], session="t")
            push = a.pool.push(to_b, inbox.ticket, [1], session="t")
            inbox.cancel()
            with contextlib.suppress(hmc.HmcError):
                push.ready(0, timeout=20)
            works = [push, inbox]
        else:
            works = [b.pool.receive(to_a, [number], timeout=0.01) for number in (1, 2)]
            if what.startswith("lost"):
                a.close()
        for work in works:
            end(work)
            assert work.error() is not None
        return [weakref.ref(work) for work in works]

    assert freed(made())


@pytest.mark.parametrize("end", [without, waits, awaits, cancels_its_task])
def test_a_failed_pull_of_weights_is_freed_without_the_collector(pair: Pair, uncollected: None, end: Any) -> None:
    plan = pair.plan(pair.publish({"x": np.ones(3)}), {"x": np.zeros(3)})

    def made() -> list[Any]:
        pull = plan.pull(epoch=5, timeout=0.05)
        end(pull)
        assert pull.error() is not None
        return [weakref.ref(pull)]

    refs = made()
    plan.pull().wait(20)  # the plan keeps its last one
    assert freed(refs)


def test_an_error_is_raised_as_it_is() -> None:
    class Odd(Exception):
        """Of a type that cannot be copied."""

        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} {two}")

    def fails() -> None:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            lost = hmc.PeerLostError("the peer is lost", native=5)
            lost.add_note("a note")
            raise lost from error

    def odd() -> None:
        raise Odd(1, 2)

    work = failing(fails)
    caught: list[Any] = []
    for _ in range(2):
        with pytest.raises(hmc.PeerLostError, match="the peer is lost") as found:
            work.wait(20)
        caught.append(found.value)
        assert found.value.native == 5
        assert found.value.__notes__ == ["a note"]
        assert isinstance(found.value.__cause__, ZeroDivisionError)
        assert "fails" in [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert caught[0] is not caught[1]
    with pytest.raises(Odd, match="1 2"):
        failing(odd).wait(20)


def test_a_work_of_a_closed_loop_ends() -> None:
    go = threading.Event()
    work = failing(lambda: go.wait(20) and None)

    async def main() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(work._awaited())), 0.05)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    go.set()
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    work.wait(20)
    assert work._cancel.asked
