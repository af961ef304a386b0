"""hmc.weights between processes: sources that are killed in every phase, and that restart. Every byte."""

from __future__ import annotations

import time
from typing import Any

import pytest
from weights_lab import NAMES, Lab, after
from weights_sides import empty, holds

import hmc
from hmc import weights
from hmc.weights import _pull


def test_a_killed_source_is_replaced(lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lab.source(), lab.source()
    target = empty(NAMES)
    plan = lab.plan([first.look_up(lab.ctx), second.look_up(lab.ctx)], target)
    after(monkeypatch, 5, lambda worker: first.kill())
    plan.pull(timeout=30).wait()
    plan.commit()
    assert holds(target, 1)
    plan.pull(timeout=30).wait()  # again, with one source


def test_a_source_that_is_lost_before_it_reads_gives_its_task_back(
    lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = empty(NAMES)
    first = lab.source()
    plan = lab.plan([first.look_up(lab.ctx), *lab.sources(2)], target)
    real = weights.Plan.move

    def move(self: weights.Plan, cell: Any, number: int, verify: bool) -> Any:
        if number == 0:
            raise hmc.StaleBufferError("lost")
        return real(self, cell, number, verify)

    monkeypatch.setattr(weights.Plan, "move", move)
    plan.pull(timeout=30).wait()
    plan.commit()
    assert holds(target, 1)


def test_a_killed_only_source_is_an_error_before_the_heartbeat(
    lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lab.source()
    target = empty(NAMES)
    plan = lab.plan(source.look_up(lab.ctx), target)
    killed = []

    def kill(worker: _pull.Worker) -> None:
        source.kill()
        killed.append(time.monotonic())

    after(monkeypatch, 5, kill)
    with pytest.raises(hmc.PeerLostError):
        plan.pull(timeout=30).wait()
    assert time.monotonic() - killed[0] < 20  # of the heartbeat's 60
    assert holds(target, 0)
    with pytest.raises(hmc.InvalidArgumentError, match="failed"):
        plan.commit()
    with pytest.raises(hmc.PeerLostError):
        plan.pull(timeout=30).wait()


@pytest.mark.parametrize("phase", ["before the plan", "before the pull", "while a pull waits", "in an update", "before the commit"])
def test_a_killed_source_in_every_other_phase(lab: Lab, phase: str) -> None:
    source = lab.source()
    found = source.look_up(lab.ctx)
    target = empty(NAMES)
    if phase == "before the plan":
        source.kill()
    plan = lab.plan(found, target)
    if phase == "before the commit":
        plan.pull(timeout=30).wait()
        source.kill()
        assert plan.commit() == 1
        assert holds(target, 1)
        return
    if phase == "before the pull":
        source.kill()
    if phase == "in an update":
        source.tell("begin", 2)
    pull = plan.pull(epoch=2, timeout=30) if "plan" not in phase else plan.pull(timeout=30)
    if phase in ("while a pull waits", "in an update"):
        time.sleep(0.2)
        assert not pull.done
        source.kill()
    began = time.monotonic()
    with pytest.raises(hmc.PeerLostError):
        pull.wait()
    assert time.monotonic() - began < 20  # of the heartbeat's 60
    assert holds(target, 0)


def test_lookup_of_a_killed_source(lab: Lab) -> None:
    source = lab.source()
    peer = lab.ctx.connect(source.address, timeout=20)
    source.kill()
    began = time.monotonic()
    with pytest.raises(hmc.PeerLostError):
        weights.lookup(lab.ctx, peer, timeout=20)
    assert time.monotonic() - began < 20  # of the heartbeat's 60


def test_a_source_that_restarts_is_another_one(lab: Lab) -> None:
    first = lab.source()
    target = empty(NAMES)
    plan = lab.plan(first.look_up(lab.ctx), target)
    first.kill()
    second = lab.source(epoch=2)
    with pytest.raises(hmc.PeerLostError):
        plan.pull(timeout=30).wait()
    plan = lab.plan(second.look_up(lab.ctx), target)
    plan.pull(timeout=30).wait()
    assert plan.commit() == 2
    assert holds(target, 2)
