"""What pulls of hmc.weights keep in memory."""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from weights_pair import Pair

import hmc
from hmc import weights
from hmc.weights import _cells, _excerpt, _pull, _sinks, _stages


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


def test_a_pull_beside_a_lost_source_keeps_no_memory(pair: Pair) -> None:
    array, target = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    closed = weights.publish(pair.source_ctx, {"x": array}, name="closed")
    lost = weights.lookup(pair.ctx, pair.peer, "closed", timeout=20)
    closed.close()
    sources = [lost, pair.publish({"x": array})]
    gc.collect()
    gc.disable()
    try:
        plan = weights.plan(sources, {"x": target})
        shadow = weakref.ref(plan.shadow)
        plan.pull(timeout=20).wait()
        plan.commit()
        del plan
        until = time.monotonic() + 20
        while shadow() is not None and time.monotonic() < until:  # the thread of the pull may not have returned yet
            time.sleep(0.01)
        assert shadow() is None
    finally:
        gc.enable()
    assert target.all()


def test_tasks_of_rising_sizes_share_their_stage(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cells, "TASK_BYTES", 1 << 16)
    arrays = {f"x{number}": np.ones(9000 + 256 * number, np.float32) for number in range(20)}  # two do not fit into a task
    source = pair.publish(arrays)
    targets = {name: weights.part(np.zeros(array.shape, np.uint16), dtype="bfloat16") for name, array in arrays.items()}
    made, spare = _stages.Stages.take, []

    def counted(self: Any, *given: Any) -> Any:
        stage = made(self, *given)
        spare.append(len(self._spare))
        return stage

    monkeypatch.setattr(_stages.Stages, "take", counted)
    plan = pair.fill(source, targets)
    assert len(plan.tasks) == len(spare) == len(arrays)
    assert max(spare) <= 1, "of the other worker"


def test_pulls_share_their_short_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cells, "TASK_BYTES", 1 << 12)
    monkeypatch.setattr(_pull, "_takes_two", lambda *_: True)
    source = pair.publish({"x": np.arange(100_000, dtype=np.float32)})
    read, digests = _excerpt.Excerpt.read, []

    def counted(self: Any, buffer: hmc.ConnBuffer, limits: Any) -> Any:
        digests.append(buffer)
        return read(self, buffer, limits)

    monkeypatch.setattr(_excerpt.Excerpt, "read", counted)
    target = np.zeros(100_000, np.float32)
    with weights.plan(source, {"x": target}) as plan:
        for pulls in (1, 2, 3):
            plan.pull(timeout=20).wait()
            assert len(digests) == pulls, "the two workers read them once"
            assert 0 < plan.scratch.spare <= 3, "of the two workers, and the digests"
        plan.commit()
    assert plan.scratch.spare == 0
    assert np.array_equal(target, np.arange(100_000, dtype=np.float32))


@pytest.mark.parametrize("kind", [hmc.DeviceError, KeyboardInterrupt])
def test_a_commit_that_raises_keeps_no_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    plan, commit, calls = weights.plan(pair.publish({"x": np.ones(5)}), {"x": np.zeros(5)}), _sinks.Sink.commit, []
    shadow = weakref.ref(plan.shadow)

    def raises_once(self: _sinks.Sink, words: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise kind("once")
        commit(self, words)

    monkeypatch.setattr(_sinks.Sink, "commit", raises_once)
    plan.pull(timeout=20).wait()
    gc.collect()
    gc.disable()
    try:
        raised = False
        try:
            plan.commit()
        except (hmc.DeviceError, KeyboardInterrupt):
            raised = True
        assert raised
        del plan
        until = time.monotonic() + 20
        while shadow() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert shadow() is None
    finally:
        gc.enable()
