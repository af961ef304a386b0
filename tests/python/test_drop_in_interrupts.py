"""The drop-ins where a signal's handler raises between any two steps of a call: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from types import FrameType, ModuleType

import pytest
from nixl_process import Mine as Agent
from opcodes import signalled_at

from hmc.integrations._shared import inbox
from hmc.integrations.nixl import _links


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
