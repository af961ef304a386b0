"""Transfers of hmc.kv and hmc.weights whose start is interrupted: by a signal, or by a close() beside a refused thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kv_sides import PAIRS
from weights_pair import Pair, random

import hmc
from hmc import _workers
from hmc.kv import _pull
from hmc.weights import _plan


class Starts:
    """Threads of a name whose start() raises KeyboardInterrupt, as a signal's handler may, although they have started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, meanwhile: Callable[[], object], *, held: bool) -> None:
        self.go = threading.Event()
        self.threads: list[threading.Thread] = []
        start = threading.Thread.start

        def interrupted(thread: Any) -> None:
            if thread.name != name:
                start(thread)
                return
            run = thread.run
            if held:
                thread.run = lambda: self.go.wait(60) and run()
            self.threads.append(thread)
            start(thread)
            meanwhile()
            raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", interrupted)

    def finish(self) -> None:
        """Lets the threads run, until they have ended."""
        self.go.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def none_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transfer starts a thread of its own."""
    monkeypatch.setattr(_workers, "_idle", [])
    monkeypatch.setattr(_workers, "_MOST_KEPT", 0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


def entered(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, go: Callable[[], threading.Event]) -> threading.Event:
    """Holds a call until ``go`` is set. The event says that it has begun."""
    real, begun = getattr(where, name), threading.Event()

    def held(*arguments: Any) -> Any:
        begun.set()
        assert go().wait(60)
        return real(*arguments)

    monkeypatch.setattr(where, name, held)
    return begun


def test_a_pull_whose_thread_does_not_run_yet_never_runs(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [1])
    before = [np.array(array, copy=True) for array in b.arrays]
    b.pool.allocate("t", 16)
    starts = Starts(monkeypatch, "hmc.kv pull", lambda: None, held=True)
    with pytest.raises(KeyboardInterrupt):
        b.pool.pull(to_a, lease.ticket, session="t")
    assert b.pool.counters()["transfers"] == 0
    b.pool.free("t")
    assert b.pool.free_blocks == b.layout.blocks
    starts.finish()
    assert all(np.array_equal(array, old) for array, old in zip(b.arrays, before, strict=True))
    monkeypatch.undo()
    b.pool.pull(to_a, lease.ticket, [1]).wait(60)


def test_a_pull_that_runs_keeps_its_blocks(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [1])
    b.pool.allocate("t", 16)
    begun = entered(monkeypatch, _pull.Pull, "run", lambda: starts.go)
    starts = Starts(monkeypatch, "hmc.kv pull", lambda: begun.wait(60), held=False)
    with pytest.raises(KeyboardInterrupt):
        b.pool.pull(to_a, lease.ticket, session="t")
    assert b.pool.counters()["transfers"] == 1
    b.pool.free("t")
    assert b.pool.free_blocks == b.layout.blocks - 1
    starts.finish()
    assert b.pool.counters()["transfers"] == 0
    assert b.pool.free_blocks == b.layout.blocks


@pytest.mark.parametrize("runs", [False, True])
def test_no_two_pulls_write_one_shadow(pair: Pair, monkeypatch: pytest.MonkeyPatch, runs: bool) -> None:
    array = random((64, 64), np.float32)
    target = np.zeros_like(array)
    plan = pair.plan(pair.publish({"x": array}), {"x": target})
    with monkeypatch.context() as patch:
        begun = entered(patch, _plan, "run", lambda: starts.go)
        starts = Starts(patch, "hmc.weights pull", (lambda: begun.wait(60)) if runs else (lambda: None), held=not runs)
        with pytest.raises(KeyboardInterrupt):
            plan.pull()
        if runs:
            with pytest.raises(hmc.InvalidArgumentError, match="another pull"):
                plan.pull()
        starts.finish()
        assert begun.is_set() == runs
    with pytest.raises(hmc.InvalidArgumentError):
        plan.commit()
    assert not target.any()
    plan.pull().wait(60)
    plan.commit()
    assert target.tobytes() == array.tobytes()


def test_close_beside_a_refused_thread_returns(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [1])
    waits = threading.Event()

    changed = b.pool.transfers._changed
    wait = changed.wait

    def noted(timeout: float | None = None) -> bool:
        waits.set()
        return wait(timeout)

    monkeypatch.setattr(changed, "wait", noted)
    closes = threading.Thread(target=lambda: b.pool.close(None), daemon=True)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name != "hmc.kv pull":
            start(thread)
            return
        start(closes)
        assert waits.wait(60)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(hmc.OutOfMemoryError):
        b.pool.pull(to_a, lease.ticket, [1])
    until = time.monotonic() + 60
    while closes.is_alive():
        assert time.monotonic() < until, "close() has not returned"
        time.sleep(0.01)
