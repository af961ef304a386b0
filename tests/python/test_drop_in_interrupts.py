"""The drop-ins where a signal's handler raises between any two steps of a call: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType

import mooncake_process
import numpy as np
import pytest
from nixl_process import SIZE, this_process
from nixl_process import Mine as Agent
from opcodes import signalled_at

from hmc.integrations._shared import inbox, ranges
from hmc.integrations._shared import memory as shared_memory
from hmc.integrations.mooncake import _registrations
from hmc.integrations.nixl import _bindings as nixl
from hmc.integrations.nixl import _links, _memory, _request, nixl_agent

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="finds where Python looks for signals in its exception tables")


@pytest.fixture(autouse=True)
def few_transports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMC_TRANSPORTS", "shm")


def within(*modules: ModuleType) -> Callable[[FrameType], bool]:
    """Accepts the functions of some modules."""
    files = [module.__file__ for module in modules]
    return lambda frame: frame.f_code.co_filename in files


def soon(what: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_an_interrupted_connection_of_an_agent_to_itself_receives() -> None:
    for step in itertools.count():
        agent = Agent().agent
        interrupted = signalled_at(step, within(inbox, _links), agent._links.own)
        agent.send_notif("mine", b"x")
        soon(lambda agent=agent: agent.get_new_notifs() == {"mine": [b"x"]})  # type: ignore[misc]
        agent._finalizer()
        if not interrupted:
            break


@pytest.mark.parametrize("length", [5, 3000])
@pytest.mark.parametrize("sizes", [(1000,), (1000, 300)], ids=["with the put", "after two"])
def test_an_interrupted_transfer_is_an_error_or_notifies_once(sizes: tuple[int, ...], length: int) -> None:
    with this_process() as mine:
        other = nixl_agent("other")
        theirs = np.zeros(SIZE, np.uint8)
        registered = other.register_memory([(theirs.ctypes.data, SIZE, 0, "")], "DRAM")
        mine.agent.add_remote_agent(other.get_agent_metadata())
        where = [(5000 * number, size) for number, size in enumerate(sizes)]
        here, there = ([(start + at, size, 0) for at, size in where] for start in (mine.address, theirs.ctypes.data))
        got: list[bytes] = []

        def arrived(message: bytes) -> bool:
            got.extend(other.get_new_notifs().get("mine", []))
            return message in got

        for step in itertools.count():
            message = step.to_bytes(4, "little") + bytes(length)
            handle = mine.transfer("WRITE", here, there, message=message)
            interrupted = signalled_at(step, within(_request, inbox), partial(mine.agent.transfer, handle))
            if handle.request().poll() in ("", "ERR"):
                mine.run(handle, message)
            assert mine.finish(handle) == "DONE"
            soon(partial(arrived, message))
            assert got.count(message) == 1
            assert all(np.array_equal(theirs[at : at + size], mine.memory[at : at + size]) for at, size in where)
            theirs[:] = 0
            if not interrupted:
                break
        assert not other.get_new_notifs()
        other.deregister_memory(registered)
        other._finalizer()


def test_an_interrupted_deregister_memory_may_be_called_again() -> None:
    with this_process() as mine:
        memory = mine.agent._memory
        for step in itertools.count():
            holder = memory.ranges.all()[0].holder
            assert holder is not None
            call = partial(mine.agent.deregister_memory, mine.registered)
            interrupted = signalled_at(step, within(_memory, ranges, shared_memory), call)
            with contextlib.suppress(nixl.nixlNotFoundError):  # the interrupt came when all was done
                call()
            assert holder.closed
            assert memory.ranges.all() == memory._ending == []
            if not interrupted:
                break
            mine.agent.register_memory(mine.registered)


@pytest.mark.parametrize("call", ["register", "unregister", "free"])
def test_an_interrupted_call_of_an_engine_about_memory_may_be_repeated(call: str) -> None:
    with mooncake_process.this_process() as mine:
        engine = mine.engine
        local = engine._ready().memory
        address, size = mine.address, len(mine.memory)
        for step in itertools.count():
            if call == "register":
                assert engine.unregister_memory(address) == 0
            elif call == "free":
                size = 100
                address = engine.allocate_managed_buffer(size)
            known = next((one.holder for one in local.ranges.all() if one.address == address), None)
            calls = {
                "register": partial(engine.register_memory, address, size),
                "unregister": partial(engine.unregister_memory, address),
                "free": partial(engine.free_managed_buffer, address, size),
            }
            interrupted = signalled_at(step, within(_registrations, ranges, shared_memory), calls[call])
            again = calls[call]()
            if call == "register":
                assert again in (0, -7)
                assert [(one.address, one.holder.closed) for one in local.ranges.all()] == [(address, False)]
            else:
                assert again in (0, -3)
                assert known is not None
                assert known.closed
                assert not local._ending
                assert all(one.address != address for one in (*local.ranges.all(), *local._known))
                assert address not in local._managed
            if not interrupted:
                break
            if call == "unregister":
                assert engine.register_memory(address, size) == 0
