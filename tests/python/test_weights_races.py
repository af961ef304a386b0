"""hmc.weights under threads, signals, cancelled tasks and missing threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from weights_pair import Pair, random

import hmc
from hmc import _workers, weights
from hmc.weights import _cells, _moves, _publish, _pull, _sinks
from hmc.weights._digest import Grid


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


@pytest.fixture
def slow_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    check = _moves.Move.check

    def slow(self: Any, *arguments: Any) -> None:
        time.sleep(0.3)
        check(self, *arguments)

    monkeypatch.setattr(_moves.Move, "check", slow)


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("refuses", [False, True])
def test_a_source_has_two_workers_where_there_are_processors_and_threads(
    pair: Pair, slow_checks: None, monkeypatch: pytest.MonkeyPatch, processors: int, refuses: bool
) -> None:
    monkeypatch.setattr(_cells, "TASK_BYTES", 1 << 20)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    array, target = random((1024, 1024), np.float32), np.zeros((1024, 1024), np.float32)
    plan = pair.plan(pair.publish({"x": array}), {"x": target})
    started: list[str] = []

    def watched(run: Any, name: str) -> None:
        started.append(name)
        if refuses:
            raise hmc.OutOfMemoryError("no more threads")
        _workers.run_on_thread(run, name)

    monkeypatch.setattr(_pull, "run_on_thread", watched)
    checked, check, meets = set(), _moves.Move.check, threading.Event()

    def noted(self: _moves.Move, *arguments: Any) -> None:
        checked.add(threading.get_ident())
        if processors == 2 and not refuses:
            if len(checked) == 2:
                meets.set()
            meets.wait(20)  # the other one may begin late
        check(self, *arguments)

    monkeypatch.setattr(_moves.Move, "check", noted)
    plan.pull().wait(60)
    plan.commit()
    assert target.tobytes() == array.tobytes()
    assert len(started) == processors - 1
    assert len(checked) == (2 if processors == 2 and not refuses else 1)


def test_a_pull_without_threads_ends_after_those_that_started(
    pair: Pair, slow_checks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = random((512, 1024), np.float32)
    plan = pair.plan([pair.publish({"x": array}, f"{number}") for number in range(3)], {"x": np.zeros_like(array)})
    started: list[str] = []

    def limited(run: Any, name: str) -> None:
        if started:
            raise hmc.OutOfMemoryError("no more threads")
        started.append(name)
        _workers.run_on_thread(run, name)

    running, drain = [], _pull.Worker._drain

    def drained(self: _pull.Worker) -> None:
        running.append(self)
        time.sleep(0.1)
        drain(self)
        running.remove(self)

    monkeypatch.setattr(_pull.Worker, "_drain", drained)
    monkeypatch.setattr(_pull, "run_on_thread", limited)
    with pytest.raises(hmc.OutOfMemoryError, match="2 more threads, 1 have started"):
        plan.pull().wait(20)
    assert not running  # it would still write the shadow
    monkeypatch.undo()
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    monkeypatch.setattr(_workers, "_idle", [])  # threads that pulls have started
    with pytest.raises(hmc.OutOfMemoryError, match="pull' was refused"):
        plan.pull()
    monkeypatch.setattr(threading.Thread, "start", start)
    plan.pull().wait(20)
    plan.commit()


def test_an_exception_of_a_signal_handler_leaves_no_partial_commit(pair: Pair) -> None:
    arrays = {f"x{number}": random((64, 1024), np.float32, number) for number in range(40)}
    target = {name: np.zeros_like(array) for name, array in arrays.items()}
    plan = pair.plan(pair.publish(arrays), target)

    class LateError(Exception):
        pass

    def late(*_: object) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    try:
        for number in range(40):
            for array in target.values():
                array[...] = 0
            plan.pull().wait(20)
            with contextlib.suppress(LateError):
                signal.setitimer(signal.ITIMER_REAL, 0.0002 * (1 + number % 10))
                plan.commit()
                time.sleep(0.01)
            equal = {target[name].tobytes() == array.tobytes() for name, array in arrays.items()}
            assert len(equal) == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_copy_that_fails_ends_the_commit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pair.plan(pair.publish({"x": np.ones(3)}), {"x": np.zeros(3)})
    plan.pull().wait(20)

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(plan._sinks[0]), "commit", fails)
    with pytest.raises(MemoryError):
        plan.commit()


def test_a_cancelled_pull_ends_while_it_quantises(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pair.publish({"x": np.ones((512, 128), np.float32)})
    target = weights.quantised(np.zeros((512, 128), np.uint8), np.zeros((4, 1), np.float32), dtype="float8_e4m3fn")
    plan = pair.plan(source, {"x": target})
    quantise, calls, begun = _sinks._QuantisedSink._block_row, [], threading.Event()

    def cancels(self: Any, *arguments: Any) -> None:
        begun.wait(20)
        calls.append(pull.cancel())
        quantise(self, *arguments)

    monkeypatch.setattr(_sinks._QuantisedSink, "_block_row", cancels)
    pull = plan.pull()
    begun.set()
    with pytest.raises(hmc.HmcCancelledError):
        pull.wait(20)
    assert len(calls) == 1
    with pytest.raises(hmc.InvalidArgumentError, match="failed"):
        plan.commit()


def test_the_coroutine_of_a_cancelled_task_can_be_closed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    check, gate = _moves.Move.check, threading.Event()

    def late(self: Any, *arguments: Any) -> None:
        assert gate.wait(20)
        check(self, *arguments)

    monkeypatch.setattr(_moves.Move, "check", late)
    array = random((512, 1024), np.float32)
    plan = pair.plan(pair.publish({"x": array}), {"x": np.zeros_like(array)})
    loop = asyncio.new_event_loop()
    pull = plan.pull()

    async def cancelled() -> Any:
        task = asyncio.ensure_future(pull._awaited())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.05)
        return task

    task = loop.run_until_complete(cancelled())
    assert not task.done()
    task.get_coro().close()  # as the interpreter does once the loop is closed; it raised RuntimeError
    task._log_destroy_pending = False
    loop.close()
    gate.set()
    with pytest.raises(hmc.HmcCancelledError):
        pull.wait(20)


def test_a_pull_that_ends_at_the_timeout_of_wait_has_its_own_outcome(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pair.plan(pair.publish({"x": np.ones(3)}), {"x": np.zeros(3)})
    pull = plan.pull()
    pull.wait(20)
    exception = Future.exception

    def late(self: Any, timeout: float | None = None) -> Any:
        if timeout is not None:
            raise FutureTimeoutError
        return exception(self)

    monkeypatch.setattr(Future, "exception", late)
    pull.wait(0.1)


def test_plans_of_several_threads_share_one_connection(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = _publish.lookup, []

    def slow(*arguments: Any, **more: Any) -> Any:
        made.append(1)
        time.sleep(0.2)
        return real(*arguments, **more)

    monkeypatch.setattr(_publish, "lookup", slow)
    array = random((20, 33), np.uint16)
    targets = [np.zeros_like(array) for _ in range(4)]
    with weights.publish(pair.ctx, {"x": array}, epoch=4) as source:

        def fill(target: Any) -> None:
            with weights.plan(source, {"x": target}) as plan:
                plan.pull().wait(20)
                plan.commit()

        threads = [threading.Thread(target=fill, args=(target,)) for target in targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(made) == 1
    assert all(np.array_equal(target, array) for target in targets)


def test_a_plan_of_this_process_connects_again_where_its_peer_is_lost(pair: Pair) -> None:
    array, target = random((20, 33), np.uint16), np.zeros((20, 33), np.uint16)
    with weights.publish(pair.ctx, {"x": array}) as source:
        source.loopback._found = SimpleNamespace(peer=SimpleNamespace(alive=False))  # type: ignore[assignment]
        with weights.plan(source, {"x": target}) as plan:
            plan.pull().wait(20)
            plan.commit()
    assert np.array_equal(target, array)


def test_a_cancelled_lookup_without_a_timeout_leaves_no_thread(pair: Pair) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(weights.lookup_async(pair.ctx, pair.peer, "never"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    ended = threading.Event()
    thread = threading.Thread(target=lambda: (asyncio.run(main()), ended.set()), daemon=True)
    thread.start()
    assert ended.wait(30)  # asyncio.run() waits for threads

    async def timeout() -> None:
        await weights.lookup_async(pair.ctx, pair.peer, "never", timeout=0.1)

    with pytest.raises(hmc.HmcTimeoutError, match="has published no weights 'never'"):
        asyncio.run(timeout())

    async def found() -> weights.Source:
        return await weights.lookup_async(pair.ctx, pair.peer, "there", timeout=20)

    pair.publish({"x": np.ones(3)}, "there")
    assert [shard.name for shard in asyncio.run(found()).shards] == ["x"]


def test_threads_that_close_at_once_close_every_buffer(pair: Pair) -> None:
    for _ in range(5):
        source = weights.publish(pair.source_ctx, {f"x{number}": np.zeros(3) for number in range(200)})
        weights.lookup(pair.ctx, pair.peer, timeout=20)
        buffers, errors = list(source._buffers), []

        def close(source: weights.Publication = source, errors: list[BaseException] = errors) -> None:
            try:
                source.close()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not errors
        for buffer in buffers:
            with pytest.raises(hmc.ClosedError):
                buffer.descriptor()


def test_close_while_an_update_takes_digests(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    source = weights.publish(pair.source_ctx, {f"x{number}": np.zeros(1000) for number in range(20)})
    original = Grid.table

    def closes(self: Any, data: Any) -> Any:
        thread = threading.Thread(target=source.close)
        thread.start()
        thread.join(20)
        return original(self, data)

    monkeypatch.setattr(Grid, "table", closes)
    with pytest.raises(hmc.ClosedError), source.update(2):
        pass
    assert int(source._words[0]) == 0


def test_a_closed_publication_is_refused_at_once(pair: Pair) -> None:
    source = weights.publish(pair.source_ctx, {"x": np.zeros(3)})
    source.close()
    with pytest.raises(hmc.ClosedError, match="no longer published"):
        weights.plan(source, {"x": np.zeros(3)})
