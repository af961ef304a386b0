"""Leases of hmc.kv that are renewed while they expire, and leases and pushes whose own process did not run for a while."""

from __future__ import annotations

import math
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


def test_transfers_and_leases_are_done_when_the_pool_is_closed(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    entered = threading.Event()

    def late(_: Any) -> None:
        entered.set()
        time.sleep(0.5)

    lease = a.pool.lease("s", [1], on_end=late)
    inbox = b.pool.receive(to_a, [0, 1])
    end = inbox._future.set_exception
    inbox._future.set_exception = lambda error: time.sleep(0.5) or end(error)  # type: ignore[method-assign]
    releases = threading.Thread(target=lease.release)
    releases.start()
    assert entered.wait(60)
    for one, side in ((lease, a), (inbox, b)):
        side.pool.close()
        assert one.done
    releases.join()


@pytest.mark.parametrize("seconds", [math.inf, 1e300, 1e10, 1e-9])
def test_leases_of_any_length(kv_pair: Any, seconds: float) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    before = a.pool.leases.usage()
    lease = a.pool.lease("s", [1], seconds=seconds)
    if seconds > 1:
        b.pool.pull(to_a, lease.ticket, [0, 1]).wait(20)
        assert lease.wait(20) == "read"
    lease.release()
    lease.wait(20)
    assert a.pool.leases.usage() == before


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("way", ["read", "expired", "released", "freed"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_blocks_become_free_when_on_end_has_returned(kv_pair: Any, monkeypatch: pytest.MonkeyPatch, way: str, fails: bool) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    all_blocks = a.pool.free_blocks
    found: list[Any] = []

    def on_end(_: Any) -> None:
        found.append(a.pool.free_blocks)
        found.append(a.pool.allocate("s", 1))  # another session of this name
        if fails:
            raise ZeroDivisionError

    mine = a.pool.allocate("s", 32)
    lease = a.pool.lease("s", seconds=0.05 if way == "expired" else 60, on_end=on_end)
    if way == "read":
        b.pool.pull(to_a, lease.ticket, [0, 1]).wait(20)
    elif way != "expired":
        lease.release() if way == "released" else a.pool.free("s")
    lease.wait(20)
    free, others = found
    assert free == all_blocks - 2
    assert not set(others) & set(mine)
    assert a.pool.free_blocks == all_blocks - 1  # that of the other session


def test_the_end_of_a_lease_may_close_its_pool(kv_pair: Any) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [1], seconds=0.01, on_end=lambda _: a.pool.close(20))
    began = time.monotonic()
    assert lease.wait(60) == "expired"
    a.pool.close()
    assert time.monotonic() - began < 15


def test_a_pool_is_closed_in_time_beside_an_end_that_does_not_return(kv_pair: Any) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    entered, go = threading.Event(), threading.Event()
    lease = a.pool.lease("s", [1], seconds=0.01, on_end=lambda _: entered.set() or go.wait(60))
    assert entered.wait(60)
    with pytest.raises(hmc.HmcTimeoutError, match="on_end of the lease of session 's' has not returned"):
        a.pool.close(0.2)
    go.set()
    a.pool.close()
    assert lease.done


@pytest.mark.parametrize("way", ["expired", "released"])
def test_the_end_of_a_lease_may_wait_for_its_lease(kv_pair: Any, way: str) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    found: list[Any] = []
    seconds = 0.01 if way == "expired" else 600
    lease = a.pool.lease("s", [1], seconds=seconds, on_end=lambda ended: found.append(ended.wait(20)))
    if way == "released":
        lease.release()
    assert lease.wait(60) == way
    assert found == [way]


def test_a_lease_for_a_reader_that_is_lost_is_an_error(kv_pair: Any) -> None:
    a, b, _, to_b = kv_pair(*PAIRS[0])
    b.close()
    until = time.monotonic() + 60
    while to_b.alive:
        assert time.monotonic() < until
        time.sleep(0.001)
    with pytest.raises(hmc.PeerLostError, match="session 's': its reader"):
        a.pool.lease("s", [0], peer=to_b)
    assert a.pool.counters()["leases_held"] == 0
