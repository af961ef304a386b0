"""Leases of hmc.kv that are renewed while they expire, and leases and pushes whose own process did not run for a while."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sides import PAIRS

import hmc
from hmc.kv import _leases, _push, _receive


def wait_for(looks: list[str], count: int, lease: Any) -> None:
    """Waits for so many looks at a lease that lives."""
    until = time.monotonic() + 60
    while len(looks) < count and not lease.done:
        assert time.monotonic() < until, looks
        time.sleep(0.001)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is found by each look at a lease."""
    look, looks = _leases.Leases._look, []

    def noted(self: _leases.Leases, lease: Any) -> str:
        found = look(self, lease)
        looks.append(found)
        return found

    monkeypatch.setattr(_leases.Leases, "_look", noted)
    return looks


def test_a_heartbeat_does_not_shorten_a_renewal(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    looks = watched(monkeypatch)
    lease = a.pool.lease("s", [1], seconds=30)
    lease.renew(3600)
    expires = lease.expires
    a.pool.leases._words[lease._ticket.slot][1] += 1
    a.pool.leases._words[lease._ticket.slot][0] = lease._ticket.generation
    wait_for(looks, len(looks) + 2, lease)
    assert lease._heartbeats == 1
    assert lease.expires == expires
    lease.release()


def test_a_lease_that_is_renewed_while_it_expires_lives(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    look, looks = _leases.Leases._look, []

    def renewing(self: _leases.Leases, lease: Any) -> str:
        found = look(self, lease)
        if found == "expired" and found not in looks:
            lease.renew(600)
        looks.append(found)
        return found

    monkeypatch.setattr(_leases.Leases, "_look", renewing)
    lease = a.pool.lease("s", [1], seconds=0.01)
    wait_for(looks, 1, lease)
    while "expired" not in looks:
        wait_for(looks, len(looks) + 1, lease)
    wait_for(looks, len(looks) + 2, lease)
    assert not lease.done
    lease.release()


@pytest.mark.parametrize("how", ["expires", "is released"])
def test_a_lease_is_not_renewed_once_its_end_has_begun(kv_pair: Any, how: str) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    found: list[Any] = []

    def renew(lease: Any) -> None:
        try:
            lease.renew(600)
            found.append("renewed")
        except hmc.LeaseExpiredError as error:
            found.append(str(error))

    lease = a.pool.lease("s", [1], seconds=0.01 if how == "expires" else 600, on_end=renew)
    if how == "is released":
        lease.release()
    reason = lease.wait(60)
    assert len(found) == 1
    assert f"it has ended ({reason})" in found[0]


def test_a_lease_outlives_a_pause_of_its_owner(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    passed = [0.0]

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if passed == [0.0]:
            passed[0] = 100.0  # as if the process had been stopped

    monkeypatch.setattr(_leases, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=sleep))
    looks = watched(monkeypatch)
    lease = a.pool.lease("s", [1], seconds=60)
    while not passed[0] and not lease.done:
        wait_for(looks, len(looks) + 1, lease)
    wait_for(looks, len(looks) + 2, lease)
    assert not lease.done
    lease.release()


def test_a_push_outlives_a_pause_of_its_sender(kv_pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    go, looks = threading.Event(), threading.Semaphore(0)
    begin, look = _receive.Inbox._begin, _push.Push._look

    def late(inbox: Any, record: Any) -> Any:
        assert go.wait(60)
        return begin(inbox, record)

    def noted(*arguments: Any) -> None:
        looks.release()
        look(*arguments)

    monkeypatch.setattr(_receive.Inbox, "_begin", late)
    monkeypatch.setattr(_push.Push, "_look", noted)
    # As if the process had been stopped once it had sent the first record.
    pauses = iter([0.0])
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + next(pauses, 100.0))
    monkeypatch.setattr(_push, "time", clock, raising=False)
    inbox = b.pool.receive(to_a, [0, 1])
    with a.pool.push(to_b, inbox.ticket, [5, 6]) as push:
        for layer in range(3):
            push.ready(layer)
        for _ in range(2):
            assert looks.acquire(timeout=60)
        go.set()
    inbox.wait(60)
