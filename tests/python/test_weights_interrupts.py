"""hmc.weights where the handler of a signal raises between any two of Python's steps."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import CodeType

import numpy as np
import pytest
from opcodes import interrupted_at
from weights_pair import Pair

import hmc
from hmc import weights
from hmc._interrupts import take
from hmc.weights import Plan, Publication


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


def every_step(code: CodeType, call: Callable[[], object], afterwards: Callable[[], object]) -> None:
    """Interrupts ``call`` at every step of ``code``, and calls ``afterwards`` each time."""
    for step in range(1000):
        interrupted = interrupted_at(step, lambda one: one is code, call)
        afterwards()
        if not interrupted:
            assert step > 3
            return
    pytest.fail("it always was interrupted")


def test_an_interrupted_publish_leaves_the_name_free(pair: Pair) -> None:
    array = np.ones(3)

    def publish() -> None:
        weights.publish(pair.source_ctx, {"x": array}).close()

    every_step(Publication._describe.__code__, publish, publish)


def test_a_name_that_is_taken_stays_published(pair: Pair) -> None:
    source, target = pair.publish({"x": np.ones(3)}), np.zeros(3)

    def publish() -> None:
        with pytest.raises(hmc.InvalidArgumentError, match="taken"):
            weights.publish(pair.source_ctx, {"x": np.zeros(3)})

    every_step(Publication._describe.__code__, publish, lambda: None)
    assert pair.fill([source, weights.lookup(pair.ctx, pair.peer, timeout=20)], {"x": target}).epoch == 0
    assert target.all()


@pytest.mark.parametrize("code", [Publication.close.__code__, take.__code__])
def test_an_interrupted_close_of_a_publication_is_repeated(pair: Pair, code: CodeType) -> None:
    made: list[Publication] = []

    def close() -> None:
        made.append(weights.publish(pair.source_ctx, {"x": np.ones(3)}))
        made[-1].close()

    every_step(code, close, lambda: made[-1].close(timeout=20))


def test_an_interrupted_update_is_repeated(pair: Pair) -> None:
    array, epochs = np.ones(3), iter(range(1, 1000))
    source = weights.publish(pair.source_ctx, {"x": array})

    def update() -> None:
        with source.update(next(epochs)):
            array[:] = 5

    every_step(take.__code__, update, update)
    source.close()


def test_an_interrupted_close_of_a_plan_is_repeated(pair: Pair) -> None:
    source, plans = pair.publish({"x": np.ones(3)}), list[Plan]()

    def close() -> None:
        plans.append(weights.plan(source, {"x": np.zeros(3)}))
        plans[-1].close()

    every_step(take.__code__, close, lambda: plans[-1].close(timeout=20))


def test_a_handler_within_a_commit_is_refused_and_does_not_wait(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = pair.publish({"x": np.arange(3.0)}), np.zeros(3)
    plan = pair.plan(source, {"x": target})
    (sink,) = plan._sinks
    refused: list[str] = []

    def handler(*_: object) -> None:
        for call in (plan.pull, plan.pulled, plan.commit):
            with pytest.raises(hmc.InvalidArgumentError, match="within another call of the plan"):
                call()
            refused.append(call.__name__)
        with pytest.raises(hmc.HmcTimeoutError, match="call close"):
            plan.close(timeout=None)
        refused.append("close")

    copy = sink.commit

    def commit(words: np.ndarray) -> None:
        signal.raise_signal(signal.SIGUSR1)
        copy(words)

    monkeypatch.setattr(sink, "commit", commit)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        plan.pull().wait(20)
        assert plan.commit() == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert refused == ["pull", "pulled", "commit", "close"]
    np.testing.assert_array_equal(target, np.arange(3.0))
    plan.close()
