"""Closes that wait for a stopped process: Ctrl-C ends them, and each thread waits for its own time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

import hmc

IMPORTER = """
    import sys
    import hmc
    context = hmc.Context(transports="shm")
    peer = context.connect(sys.argv[1], timeout=60)
    remote = peer.lookup("mine", timeout=60)
    print("has it", flush=True)
    sys.stdin.readline()
"""


class Held:
    """A Context whose memory a stopped process has mapped."""

    def __init__(self) -> None:
        self.context = hmc.Context(transports="shm")
        self.context.publish("mine", self.context.buffer(1 << 20))
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(IMPORTER), self.context.addresses[0]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        assert self._process.stdout is not None
        self.context.accept(timeout=60)
        assert self._process.stdout.readline() == "has it\n"
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def let_go(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self.context.close(timeout=60)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.end()


class InterruptedTestError(Exception):
    pass


def test_a_signal_handler_ends_it(held: Held) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        if held.context.closed:  # it is in close()
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise InterruptedTestError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(InterruptedTestError):
            held.context.close(timeout=None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(hmc.HmcTimeoutError, match="may still read and write"):
        held.context.close(timeout=0.05)
    held.let_go()
    held.context.close(timeout=60)


def test_each_thread_waits_for_its_own_time(held: Held) -> None:
    ended: list[str] = []

    def wait_for_ever() -> None:
        held.context.close(timeout=None)
        ended.append("closed")

    other = threading.Thread(target=wait_for_ever)
    other.start()
    while not held.context.closed:
        pass
    with pytest.raises(hmc.HmcTimeoutError):
        held.context.close(timeout=0.05)
    assert not ended
    held.let_go()
    other.join(timeout=60)
    assert ended == ["closed"]
