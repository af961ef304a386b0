"""The NIXL drop-in where two threads call it at the same time: one deregisters or releases what the other one uses."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from nixl_process import SIZE, Mine, contents, this_process

from hmc.integrations.nixl import _agent_metadata
from hmc.integrations.nixl import _bindings as nixl
from hmc.integrations.nixl._metadata import Metadata
from hmc.integrations.nixl._request import Request


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mine]:
    monkeypatch.setenv("HMC_TRANSPORTS", "shm")
    with this_process() as one:
        yield one


def before_entry(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    """Calls something once, after the registrations were listed."""
    entry, calls = _agent_metadata._entry, [call]

    def late(one: Any) -> Any:
        if calls:
            calls.pop()()
        return entry(one)

    monkeypatch.setattr(_agent_metadata, "_entry", late)


def test_metadata_beside_deregister_memory_lacks_what_is_gone(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    more = np.zeros(5000, np.uint8)
    mine.agent.register_memory([(more.ctypes.data, 5000, 0, "")], "DRAM")
    before_entry(monkeypatch, lambda: mine.agent.deregister_memory(mine.registered))
    entries = Metadata.decode(mine.agent.get_agent_metadata()).entries
    assert [entry.address for entry in entries] == [more.ctypes.data]


def test_partial_metadata_of_memory_that_goes_meanwhile_is_refused(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    before_entry(monkeypatch, lambda: mine.agent.deregister_memory(mine.registered))
    with pytest.raises(nixl.nixlNotFoundError):
        mine.agent.get_partial_agent_metadata(mine.registered)


def test_metadata_of_an_agent_that_has_ended_is_an_error(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    before_entry(monkeypatch, mine.agent._links.ctx.close)
    with pytest.raises(nixl.nixlRemoteDisconnectError):
        mine.agent.get_agent_metadata()


def test_a_transfer_that_is_released_while_it_starts_moves_nothing(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    other = mine.start()
    handle = mine.transfer("WRITE", [(mine.address, SIZE, 0)], [(other.address, SIZE, 0)])
    entered, go, found = threading.Event(), threading.Event(), []
    prepare = Request._prepare

    def late(request: Request) -> None:
        entered.set()
        assert go.wait(60)
        prepare(request)

    def transfer() -> None:
        try:
            found.append(mine.agent.transfer(handle))
        except nixl.nixlInvalidParamError as error:
            found.append(str(error))

    monkeypatch.setattr(Request, "_prepare", late)
    thread = threading.Thread(target=transfer)
    thread.start()
    assert entered.wait(60)
    mine.agent.release_xfer_handle(handle)
    go.set()
    thread.join(60)
    assert found == ["the transfer was released by another thread"]
    assert np.array_equal(other.memory(), contents(7))


@pytest.mark.parametrize("call", ["request", "release"])
def test_a_transfer_that_another_thread_releases_is_released(mine: Mine, call: str) -> None:
    other = mine.start()
    for step in range(60):
        handle = mine.transfer("WRITE", [(mine.address, 8, 0)], [(other.address, 8, 0)])
        left = step

        def trace(frame: Any, event: str, _: object, handle: Any = handle) -> Any:
            nonlocal left
            if frame.f_code.co_name != call:
                return None
            frame.f_trace_opcodes = True
            left -= event == "opcode"
            if left < 0:
                sys.settrace(None)
                handle.release()  # as another thread might now
            return trace

        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True
        sys.settrace(trace)
        try:
            assert getattr(handle, call)() is not None or call == "release"
        except nixl.nixlInvalidParamError:
            assert call == "request"
        finally:
            sys.settrace(before)
