"""Waits that another thread ends by closing the Communicator: at once and with ClosedError, blocking and awaited."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import pytest

import hmc

WAITS: dict[str, Callable[[hmc.Communicator], object]] = {
    "wait_notify": lambda comm: comm.wait_notify(0, 3, timeout=60),
    "notifications": lambda comm: comm.notifications(timeout=60),
    "recv": lambda comm: comm.recv(np.zeros(8), 0, timeout=60),
    "recv from any": lambda comm: comm.recv(np.zeros(8), hmc.ANY_SOURCE, timeout=60),
    "irecv": lambda comm: comm.irecv(np.zeros(8), 0).wait(60),
}
AWAITS: dict[str, Callable[[hmc.Communicator], Awaitable[object]]] = {
    "wait_notify_async": lambda comm: comm.wait_notify_async(0, 3, timeout=60),
    "notifications_async": lambda comm: comm.notifications_async(timeout=60),
    "irecv": lambda comm: comm.irecv(np.zeros(8), 0),
}


@pytest.fixture(params=["world", "group"])
def comm(request: pytest.FixtureRequest) -> Iterator[hmc.Communicator]:
    """What is to be closed: the job, of this process alone, or a group of it."""
    with hmc.init(rank=0, size=1, timeout=60) as world:
        yield world if request.param == "world" else world.split(0, timeout=60)


@pytest.mark.parametrize("name", WAITS)
def test_blocking_waits(comm: hmc.Communicator, name: str) -> None:
    ended: list[Exception] = []

    def wait() -> None:
        try:
            WAITS[name](comm)
        except hmc.HmcError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    comm.close(timeout=30)
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    assert [type(error) for error in ended] == [hmc.ClosedError]


@pytest.mark.parametrize("name", AWAITS)
def test_awaited_waits(comm: hmc.Communicator, name: str) -> None:
    async def wait() -> object:
        return await AWAITS[name](comm)

    async def main() -> None:
        pending = asyncio.ensure_future(wait())
        await asyncio.sleep(0.05)
        await asyncio.to_thread(comm.close, 30)
        with pytest.raises(hmc.ClosedError):
            await asyncio.wait_for(pending, 30)

    asyncio.run(main())
