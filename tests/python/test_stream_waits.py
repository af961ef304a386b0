"""Waiting for marks on streams: how a thread that looks at them gives up its core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hmc import _streams
from hmc._deadline import Deadline
from hmc.errors import HmcTimeoutError
from hmc.experts import _arrays


class Mark:
    """Reached at the last of so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def reached(self) -> bool:
        self.looks -= 1
        return self.looks == 0


def waited(monkeypatch: pytest.MonkeyPatch, marks: list[Mark], step: float) -> list[float]:
    """How long it slept each time, by a clock that goes on by ``step`` seconds whenever it is read."""
    clock = [0.0]
    slept: list[float] = []

    def monotonic() -> float:
        clock[0] += step
        return clock[0]

    monkeypatch.setattr(_streams, "time", SimpleNamespace(monotonic=monotonic, sleep=slept.append))
    found: Any = marks
    _streams.wait_for(found, lambda: None)
    return slept


def test_work_that_is_over_soon_is_waited_for_without_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleep takes as long as the slack of the timers of the kernel, 50 us, or longer."""
    marks = [Mark(1), Mark(20), Mark(3)]
    assert waited(monkeypatch, marks, 1e-6) == []
    assert [mark.looks for mark in marks] == [0, 0, 0]


def test_work_that_takes_long_is_waited_for_with_longer_and_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch, [Mark(7)], 1.0) == pytest.approx([0.00005, 0.0001, 0.0002, 0.0004, 0.0005, 0.0005])


def test_what_the_check_raises_ends_the_wait() -> None:
    def check() -> None:
        raise InterruptedError

    marks: Any = [Mark(1), Mark(100)]
    with pytest.raises(InterruptedError):
        _streams.wait_for(marks, check)
    assert marks[1].looks == 99


def test_a_call_looks_no_more_at_a_mark_that_was_reached() -> None:
    marks: Any = [Mark(1)]
    for _ in range(2):
        _arrays.wait("x", marks, Deadline(20), "call again")
        assert marks == []


def test_a_mark_that_was_not_reached_in_time_stays() -> None:
    late = Mark(10**9)
    marks: Any = [late]
    with pytest.raises(HmcTimeoutError, match=r"x: its stream .* call again"):
        _arrays.wait("x", marks, Deadline(0), "call again")
    assert marks == [late]
