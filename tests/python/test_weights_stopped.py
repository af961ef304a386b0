"""SIGSTOP of a source of hmc.weights: cancel, timeouts and close work, and the pull goes on with the source."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from weights_lab import NAMES, Lab, after
from weights_sides import Source, empty, holds

import hmc
import hmc.testing
from hmc import weights
from hmc.weights import _pull, _remote

SOON = 30.0  # seconds; on a busy machine too


def ends(pull: weights.Pull, *kinds: type[Exception]) -> None:
    """With one of these errors, or well: over shm a reader copies by itself."""
    with contextlib.suppress(*kinds):
        pull.wait(SOON)


@pytest.fixture
def stopped_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Source, str], None]:
    def arrange(source: Source, phase: str) -> None:
        if phase == "between tasks":
            after(monkeypatch, 5, lambda _: source.kill(signal.SIGSTOP))
            return
        owner, name = {"before its epoch is read": (_pull, "_start"), "before its digests are read": (_pull.Worker, "_run")}[phase]
        real, halted = getattr(owner, name), []

        def halt(*given: object, **more: object) -> object:
            if not halted:
                halted.append(source.kill(signal.SIGSTOP))
            return real(*given, **more)

        monkeypatch.setattr(owner, name, halt)

    return arrange


PHASES = pytest.mark.parametrize("phase", ["before its epoch is read", "before its digests are read", "between tasks"])


@PHASES
@pytest.mark.parametrize("way", ["timeout", "cancel", "close"])
def test_a_pull_from_a_stopped_source_ends(
    lab: Lab,
    small_tasks: None,
    stopped_in: Callable[[Source, str], None],
    phase: str,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = lab.source()
    target = empty(NAMES)
    plan = weights.plan(source.look_up(lab.ctx), target)
    stopped_in(source, phase)
    pull = plan.pull(timeout=1 if way == "timeout" else None)
    if way != "timeout":
        with contextlib.suppress(hmc.HmcTimeoutError):
            pull.wait(1)
    if way == "cancel":
        pull.cancel()
    if way == "close":
        plan.close(SOON)
    ends(pull, hmc.HmcTimeoutError if way == "timeout" else hmc.HmcCancelledError)
    monkeypatch.undo()  # where it was not so far within the second
    assert holds(target, 0)
    source.kill(signal.SIGCONT)
    plan.close(SOON)
    again = lab.plan(source.look_up(lab.ctx), target)
    again.pull(timeout=SOON).wait()
    again.commit()
    assert holds(target, 1)


def test_a_cancelled_lookup_beside_a_stopped_source_does_not_keep_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as end:
        lab = Lab(end.enter_context(hmc.Context(transports="tcp")), "tcp", end)
        source = lab.source()
        peer = lab.ctx.connect(source.address, timeout=SOON)
        lab_named, reads, ended = _remote._named, threading.Event(), threading.Event()

        @contextlib.contextmanager
        def stops(*given: Any) -> Iterator[None]:
            with lab_named(*given):
                yield
            source.kill(signal.SIGSTOP)
            reads.set()

        async def main() -> None:
            task = asyncio.ensure_future(weights.lookup_async(lab.ctx, peer))
            assert await asyncio.to_thread(reads.wait, SOON)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        monkeypatch.setattr(_remote, "_named", stops)
        threading.Thread(target=lambda: (asyncio.run(main()), ended.set()), daemon=True).start()
        try:
            assert ended.wait(SOON)  # it waited for the thread, which has no timeout
        finally:
            source.kill(signal.SIGCONT)


def test_a_source_beside_a_stopped_one_gives_everything_once_that_goes_on(
    lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [lab.source(), lab.source()]
    target = empty(NAMES)
    plan = lab.plan([source.look_up(lab.ctx) for source in sources], target)
    stopped = threading.Event()
    after(monkeypatch, 5, lambda _: (sources[0].kill(signal.SIGSTOP), stopped.set())[1])
    pull = plan.pull(timeout=SOON)
    assert stopped.wait(SOON)
    try:
        pull.wait(1)
    except hmc.HmcTimeoutError:
        sources[0].kill(signal.SIGCONT)
        pull.wait(SOON)
    plan.commit()
    assert holds(target, 1)


# A staged read into device memory that has begun cannot be withdrawn.
INTO_A_DEVICE = """
import signal
from weights_lab import NAMES, Lab
from weights_sides import empty, holds
from hmc import weights
from hmc.weights import _cells, _pull

_cells.DEVICE_TASK_BYTES = 1 << 16
with contextlib.ExitStack() as end:
    lab = Lab(end.enter_context(hmc.Context(transports="tcp,staging")), "tcp,staging", end)
    source, target = lab.source(), empty(NAMES)
    plan = end.enter_context(weights.plan(source.look_up(lab.ctx), target, shadow="cuda:0"))
    for way in ("timeout", "cancel", "close"):
        plan.pull(timeout=SOON).wait()  # buffers are known to both sides: the next reads begin at once
        post, before, stopped = _pull.Worker._post, plan.shadow, threading.Event()

        def stop(*given):
            post(*given)
            if not stopped.is_set():
                source.kill(signal.SIGSTOP)
                stopped.set()

        _pull.Worker._post = stop
        pull = plan.pull(timeout=2 if way == "timeout" else None)
        assert stopped.wait(SOON)
        if way != "timeout":
            with contextlib.suppress(hmc.HmcTimeoutError):
                pull.wait(1)
        if way == "cancel":
            pull.cancel()
        if way == "close":
            plan.close(SOON)
        try:
            pull.wait(SOON)
        except (hmc.HmcTimeoutError if way == "timeout" else hmc.HmcCancelledError):
            pass
        assert pull.done and pull.error() is not None, way
        _pull.Worker._post = post
        source.kill(signal.SIGCONT)
        if way == "close":
            plan = end.enter_context(weights.plan(plan.sources, target, shadow="cuda:0"))
        plan.pull(timeout=SOON).wait()
        assert way == "close" or plan.shadow is not before, "what is still read may come late"
        plan.commit()
        assert holds(target, 1), way
        for one in target.values():
            one.array[...] = 0
print("ended")
"""


def test_a_pull_into_a_device_ends_beside_a_stopped_source(run_script: Callable[..., str]) -> None:
    source = f"SOON = {SOON}\nimport contextlib, threading\n" + INTO_A_DEVICE
    assert "ended" in run_script(source, dict(hmc.testing.environment("cuda", devices=2)))
