"""hmc.weights between processes: every resharding, updates, corruption, cancel and deadline in mid-pull. Every byte."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time

import pytest
from weights_lab import NAMES, Lab, after
from weights_sides import empty, holds

import hmc
from hmc import weights
from hmc.weights import _pull


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(("before", "afterwards"), [(1, 2), (2, 1), (4, 3)])
def test_every_rank_of_another_sharding(lab: Lab, before: int, afterwards: int, mapped: bool) -> None:
    sources = lab.sources(before, mapped=mapped)
    for axis in (-1, 0, 1):  # as the sources split, rows, columns
        for rank in range(afterwards):
            target = empty(NAMES, rank, afterwards, axis)
            plan = lab.plan(sources, target)
            plan.pull(timeout=30).wait()
            assert holds(target, 0)
            assert plan.commit() == 1
            assert holds(target, 1)


def test_small_tasks_without_digests(lab: Lab, small_tasks: None) -> None:
    target = empty(NAMES, 1, 3)
    plan = lab.plan(lab.sources(2, digest=False), target)
    with pytest.raises(hmc.InvalidArgumentError, match="digest=False"):
        plan.pull()
    plan.pull(verify=False, timeout=30).wait()
    plan.commit()
    assert holds(target, 1)


def test_pipeline_stages(lab: Lab) -> None:
    stages = [[name for name in NAMES if name.startswith(prefix)] for prefix in (("embed", "0."), ("1.", "2."), ("3.",))]
    sources = [lab.source(rank, 2, names).look_up(lab.ctx) for names in stages for rank in range(2)]
    for names in (NAMES, stages[1], stages[0] + stages[1][:2]):
        target = empty(names)
        plan = lab.plan(sources, target)
        plan.pull(timeout=30).wait()
        plan.commit()
        assert holds(target, 1)


def test_replicas_of_other_shardings_share_the_work(lab: Lab, small_tasks: None) -> None:
    target = empty(NAMES)
    plan = lab.plan([*lab.sources(2), *lab.sources(3)], target)
    plan.pull(timeout=30).wait()
    plan.commit()
    assert holds(target, 1)


def test_an_update_during_a_pull(lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lab.source()
    target = empty(NAMES)
    plan = lab.plan(source.look_up(lab.ctx), target)
    after(monkeypatch, 5, lambda worker: source.tell("update", 2))
    with pytest.raises(hmc.EpochChangedError):
        plan.pull(timeout=30).wait()
    assert holds(target, 0)
    plan.pull(timeout=30).wait()
    assert plan.commit() == plan.epoch == 2
    assert holds(target, 2)


def test_an_update_of_one_of_two_replicas_is_not_mixed_in(lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lab.source(), lab.source()
    target = empty(NAMES)
    plan = lab.plan([first.look_up(lab.ctx), second.look_up(lab.ctx)], target)
    after(monkeypatch, 5, lambda worker: first.tell("update", 2))
    plan.pull(timeout=30).wait()
    assert plan.commit() == 1
    assert holds(target, 1)


def test_a_pull_waits_until_all_shards_have_the_epoch(lab: Lab) -> None:
    ranks = [lab.source(rank, 2) for rank in range(2)]
    target = empty(NAMES)
    plan = lab.plan([rank.look_up(lab.ctx) for rank in ranks], target)
    ranks[0].tell("update", 2)
    with pytest.raises(hmc.HmcTimeoutError, match="epochs"):
        plan.pull(timeout=0.3).wait()
    with pytest.raises(hmc.HmcTimeoutError, match="epoch 7"):
        plan.pull(epoch=7, timeout=0.1).wait()
    pull = plan.pull(epoch=2, timeout=30)
    ranks[1].tell("update", 2)
    pull.wait()
    assert plan.commit() == 2
    assert holds(target, 2)


@pytest.mark.parametrize(("name", "byte"), [("embed", 0), ("0.out", 130 * 2051 * 2 - 1), ("1.bias", 4098), ("3.scale", 3)])
def test_corrupted_bytes(lab: Lab, name: str, byte: int) -> None:
    source = lab.source()
    target = empty(NAMES)
    plan = lab.plan(source.look_up(lab.ctx), target)
    source.tell("corrupt", name, byte)
    with pytest.raises(hmc.CorruptError, match=name):
        plan.pull(timeout=30).wait()
    assert holds(target, 0)
    plan.pull(verify=False, timeout=30).wait()  # the control: without digests it goes unseen
    plan.commit()
    assert not holds(target, 1)


def test_cancel_during_a_pull(lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = empty(NAMES)
    plan = lab.plan(lab.sources(2), target)
    pulls: list[weights.Pull] = []
    after(monkeypatch, 5, lambda worker: pulls[0].cancel())
    with monkeypatch.context() as patch:
        real, known = _pull.Worker.main, threading.Event()
        patch.setattr(_pull.Worker, "main", lambda self: (known.wait(20), real(self))[0])
        pulls.append(plan.pull())
        known.set()
        with pytest.raises(hmc.HmcCancelledError):
            pulls[0].wait(30)
    assert holds(target, 0)
    plan.pull(timeout=30).wait()
    plan.commit()
    assert holds(target, 1)


def test_a_cancelled_task_ends_its_pull(lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = empty(NAMES)
    plan = lab.plan(lab.sources(1), target)

    async def cancelled() -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None

        def cancel(worker: _pull.Worker) -> None:
            loop.call_soon_threadsafe(task.cancel)
            assert worker.limits.cancel.wait(20)

        after(monkeypatch, 5, cancel)
        with pytest.raises(asyncio.CancelledError):
            await plan.pull()

    asyncio.run(cancelled())
    assert holds(target, 0)
    with pytest.raises(hmc.InvalidArgumentError):
        plan.commit()


def test_await(lab: Lab) -> None:
    async def receive() -> None:
        peer = await lab.ctx.connect_async(lab.source().address, timeout=20)
        target = empty(NAMES, 1, 2)
        with weights.plan(await weights.lookup_async(lab.ctx, peer, timeout=20), target) as plan:
            await plan.pull(timeout=30)
            plan.commit()
        assert holds(target, 1)

    asyncio.run(receive())


def test_the_deadline_beside_a_stopped_source(small_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as end:
        lab = Lab(end.enter_context(hmc.Context(transports="tcp")), "tcp", end)
        source = lab.source()
        target = empty(NAMES)
        plan = lab.plan(source.look_up(lab.ctx), target)
        stopped = []
        after(monkeypatch, 5, lambda worker: (source.kill(signal.SIGSTOP), stopped.append(time.monotonic()))[0])
        pull = plan.pull(timeout=1)
        with pytest.raises(hmc.HmcTimeoutError):
            pull.wait(20)
        monkeypatch.undo()  # where the second was over before
        assert holds(target, 0)
        source.kill(signal.SIGCONT)
        pull.drained(20)
        plan.pull(timeout=30).wait()
        plan.commit()
        assert holds(target, 1)


def test_a_receiver_is_a_source(lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lab.source()
    with contextlib.ExitStack() as end:
        middle = end.enter_context(hmc.Context(transports=lab.transports))
        leaf = end.enter_context(hmc.Context(transports=lab.transports))
        first, second = empty(NAMES), empty(NAMES, 1, 2)
        with weights.plan(root.look_up(middle), first) as plan:
            plan.pull(timeout=30).wait()
            epoch = plan.commit()
        onward = end.enter_context(weights.publish(middle, first, epoch=epoch))
        parent = weights.lookup(leaf, leaf.connect(middle.addresses[0], timeout=20), timeout=20)
        plan = end.enter_context(weights.plan([root.look_up(leaf), parent], second))
        after(monkeypatch, 5, lambda worker: root.kill())
        plan.pull(epoch=1, timeout=30).wait()
        plan.commit()
        assert holds(second, 1)
        assert onward.epoch == 1


def test_a_tree_of_receivers(lab: Lab) -> None:
    """1 to 2 to 4 to 8 halves; each level dies when the next one has its weights, and each receiver compares every byte."""
    level = [lab.source(epoch=3)]
    for _ in range(3):
        addresses = [source.address for source in level]
        children = [lab.source(number % 2, 2, epoch=3, upstream=addresses) for number in range(2 * len(level))]
        for source in level:
            source.kill()
        level = children
    target = empty(NAMES)
    plan = lab.plan([source.look_up(lab.ctx) for source in level], target)
    plan.pull(timeout=30).wait()
    assert plan.commit() == 3
    assert holds(target, 3)


def test_epochs_are_never_mixed(lab: Lab, small_tasks: None) -> None:
    """Two ranks update each half second; pulls of three plans that share sources end with one epoch or with an error."""
    names = [name for name in NAMES if name != "0.qkv"]
    ranks = [lab.source(rank, 2, names) for rank in range(2)]
    sources = [rank.look_up(lab.ctx) for rank in ranks]
    targets = [empty(names), empty(names, 0, 2), empty(names, 2, 3, 1)]
    plans = [lab.plan(sources, target) for target in targets]
    for rank in ranks:
        rank.tell("spin")
    commits = errors = 0
    began = time.monotonic()
    while time.monotonic() - began < (6 if commits else 60):  # a busy machine may take most of each half second to update
        pulls = [plan.pull(timeout=20) for plan in plans]
        for pull, plan, target in zip(pulls, plans, targets, strict=True):
            try:
                pull.wait(30)
            except (hmc.EpochChangedError, hmc.HmcTimeoutError):  # late: a busy machine kept the ranks apart
                errors += 1
                continue
            assert holds(target, plan.commit())
            commits += 1
    print(f"{commits} commits, {errors} pulls during an update")
    assert commits > 0


def test_a_closed_publication(lab: Lab) -> None:
    source = lab.source()
    target = empty(NAMES)
    plan = lab.plan(source.look_up(lab.ctx), target)
    source.tell("close")
    with pytest.raises(hmc.StaleBufferError):
        plan.pull(timeout=30).wait()
    with pytest.raises(hmc.HmcTimeoutError, match="published no weights"):
        weights.lookup(lab.ctx, lab.ctx.connect(source.address, timeout=20), timeout=0.2)
    assert holds(target, 0)
