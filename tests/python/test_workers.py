"""Threads that are kept for the next work: none is lost, none runs twice, and nothing of what is over is kept."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable

import pytest
from opcodes import interrupted_at

from hmc import _workers
from hmc._workers import run_on_thread


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def parked() -> int:
    return len(_workers._idle)


def thread_of(name: str) -> threading.Thread:
    found: list[threading.Thread] = []
    ended = threading.Event()

    def run() -> None:
        found.append(threading.current_thread())
        assert found[0].name == name
        ended.set()

    run_on_thread(run, name)
    assert ended.wait(20)
    return found[0]


def test_the_next_work_has_the_thread_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "_idle", [])  # without those of other tests
    first = thread_of("first")
    until(lambda: parked() == 1)
    assert first.daemon
    assert first.name == "hmc idle"
    assert thread_of("second") is first


def test_what_is_over_is_not_kept() -> None:
    class Held: ...

    held = Held()
    gone = weakref.ref(held)
    ended = threading.Event()
    run_on_thread(lambda held=held: ended.set(), "holds")  # type: ignore[misc]
    del held
    assert ended.wait(20)

    def collected() -> bool:
        gc.collect()
        return gone() is None

    until(collected)


def test_a_thread_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "_idle", [])
    monkeypatch.setattr(_workers, "_KEPT", 0.01)
    thread = thread_of("short")
    thread.join(20)
    assert not thread.is_alive()
    assert parked() == 0


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workers, "_idle", [])
    monkeypatch.setattr(_workers, "_MOST_KEPT", 2)
    together = threading.Barrier(6)
    threads: list[threading.Thread] = []

    def run() -> None:
        threads.append(threading.current_thread())
        together.wait(20)

    for _ in range(6):
        run_on_thread(run, "together")
    until(lambda: len(threads) == 6 and sum(thread.is_alive() for thread in threads) == 2)


@pytest.mark.parametrize("kept", [5.0, 0.0005])  # with the shorter one threads leave while they are given work
def test_each_work_runs_once(monkeypatch: pytest.MonkeyPatch, kept: float) -> None:
    monkeypatch.setattr(_workers, "_KEPT", kept)
    ran: list[int] = []

    def give(giver: int) -> None:
        for number in range(200):
            run_on_thread(lambda one=giver * 1000 + number: ran.append(one), "one of many")  # type: ignore[misc]
            time.sleep(0.0001 * (number % 11))

    givers = [threading.Thread(target=give, args=(giver,)) for giver in range(5)]
    for thread in givers:
        thread.start()
    for thread in givers:
        thread.join(60)
    until(lambda: len(ran) >= 1000)
    time.sleep(0.05)
    assert set(Counter(ran).values()) == {1}


def test_an_error_ends_its_thread_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda what: printed.set())

    def fail() -> None:
        raise ValueError("of the work")

    run_on_thread(fail, "fails")
    assert printed.wait(20)
    assert thread_of("next").name in ("next", "hmc idle")


def test_an_interrupt_strands_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two of Python's steps, where the handler of a signal may raise."""
    monkeypatch.setattr(_workers, "_idle", [])
    thread = thread_of("kept")
    for step in range(200):
        until(lambda: parked() == 1)
        if not interrupted_at(step, lambda one: one is run_on_thread.__code__, lambda: run_on_thread(lambda: None, "interrupted")):
            break
    else:
        pytest.fail("it always was interrupted")
    assert step > 3
    until(lambda: parked() == 1)
    assert thread_of("last") is thread


def test_the_child_of_a_fork_starts_its_own() -> None:
    thread_of("parent's")
    until(lambda: parked() > 0)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if parked() == 0 and thread_of("child's").is_alive() else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
