"""Loops that watch HMC's descriptor: what a signal handler raises in their readers, and what is left when they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("where", ["drain", "finish", "finish_completed"])
def test_an_exception_of_a_signal_handler_in_the_reader_loses_no_completion(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """asyncio reports what its readers raise, and goes on. `where`: the call after which the handler runs."""
    from hmc import _loop

    ab, ba = pair.ab, pair.ba
    raised: list[str] = []

    def interrupt(name: str) -> None:
        if name not in raised:
            raised.append(name)
            raise RuntimeError(f"a signal handler after {name}()")

    class Queue:
        def __init__(self, queue: Any) -> None:
            self.queue = queue

        def drain(self) -> list[int]:
            tokens: list[int] = self.queue.drain()
            if where != "finish" and tokens:
                interrupt("drain")
            return tokens

    finish = _loop._Waiter.finish

    def interrupted_finish(waiter: Any) -> None:
        finish(waiter)
        if where != "drain":
            interrupt("finish")

    async def job() -> None:
        reported: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
        waits = [asyncio.ensure_future(ba.wait_notify_async(i)) for i in range(3)]
        await asyncio.sleep(0)
        queue: Any = _loop._queues[loop]()
        queue.queue = Queue(queue.queue)
        for i in range(3):
            ab.notify(i)
        await asyncio.wait_for(asyncio.gather(*waits), 60)
        assert len(reported) == len(raised) > 0
        assert not queue.waiting

    monkeypatch.setattr(_loop._Waiter, "finish", interrupted_finish)
    asyncio.run(job())


def test_loops_free_their_descriptors(pair: Pair) -> None:
    ab, ba = pair.ab, pair.ba

    async def job() -> None:
        wait = asyncio.ensure_future(ba.wait_notify_async(1))
        await asyncio.sleep(0)
        ab.notify(1)
        await asyncio.wait_for(wait, 20)

    async def leave_behind() -> None:
        asyncio.ensure_future(ba.wait_notify_async(2))  # noqa: RUF006
        await asyncio.sleep(0)

    asyncio.run(job())
    gc.collect()
    before = descriptors()
    for _ in range(10):
        asyncio.run(job())
        loop = asyncio.new_event_loop()
        with contextlib.redirect_stderr(None):
            loop.run_until_complete(leave_behind())
            loop.close()
            del loop
            gc.collect()
    several = [threading.Thread(target=asyncio.run, args=(job(),)) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join(30)
    gc.collect()
    assert descriptors() <= before
    ab.notify(2)  # nobody of those left behind takes it
    ba.wait_notify(2, timeout=20)
