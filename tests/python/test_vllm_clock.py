"""The clock of kept requests ticks while something is timed, and then only."""

from __future__ import annotations

import threading
import time

from hmc.integrations.vllm import _clock
from hmc.integrations.vllm._clock import RunningClock


def clock_threads() -> int:
    return sum(thread.name == "hmc.vllm clock" for thread in threading.enumerate())


def test_nothing_wakes_while_nothing_is_timed() -> None:
    looks: list[bool] = []
    timed = False

    def look() -> bool:
        looks.append(timed)
        return timed

    before = clock_threads()
    clock = RunningClock(look)
    time.sleep(5 * _clock._TICK)
    assert looks == [False]
    begun = clock.now()
    timed = True
    clock.wake()
    deadline = time.monotonic() + 20
    while looks.count(True) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    timed = False
    while looks[-1]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    looked = len(looks)
    time.sleep(3 * _clock._TICK)
    assert len(looks) == looked
    assert clock.now() > begun
    clock.close()
    clock.close()
    while clock_threads() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_never_goes_back() -> None:
    clock = RunningClock(lambda: time.monotonic() % 0.05 < 0.02)
    last, end = clock.now(), time.monotonic() + 1
    while time.monotonic() < end:
        clock.wake()
        now = clock.now()
        assert now >= last
        last = now
    clock.close()
