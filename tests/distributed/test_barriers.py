"""Barriers: monitored ones name the ranks that are missing, others have a deadline."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import hmc
from hmc.torch._barrier import MonitoredBarrier

MONITORED = """
import time
from datetime import timedelta
rank, size = start()
world = dist.group.WORLD

def barrier(seconds, wait_all_ranks):
    # Before 2.14 torch's own function has it for gloo alone.
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
        dist.monitored_barrier(timeout=timedelta(seconds=seconds), wait_all_ranks=wait_all_ranks)
    else:
        world.monitored_barrier(timedelta(seconds=seconds), wait_all_ranks)

for _ in range(3):
    barrier(60, False)
for wait_all_ranks in (False, True):
    dist.barrier()
    if rank == 0:  # rank 1 has come
        until = time.monotonic() + 60
        while not world.communicator.context.counters()["messages.unread"] and time.monotonic() < until:
            time.sleep(0.001)
    if rank < 2:
        began = time.monotonic()
        try:
            barrier(1, wait_all_ranks)
        except hmc.HmcTimeoutError as error:
            assert 0.9 < time.monotonic() - began < 30
            assert ("ranks 2, 3" if wait_all_ranks else "rank 2 ") in str(error), error
            assert rank == 0 or "rank 0 reports" in str(error), error
        else:
            raise SystemExit("it came back")
    dist.barrier()
barrier(60, True)
dist.destroy_process_group()
"""


def test_monitored_barrier_names_who_is_missing(run_torch: Callable[..., list[str]]) -> None:
    run_torch(MONITORED, ranks=4)


PRELUDE = """
import signal, time
from datetime import timedelta
rank, size = start()
world, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()

def barrier(seconds, wait_all_ranks=False):
    world.monitored_barrier(timedelta(seconds=seconds), wait_all_ranks)

def fails(error, *words, seconds):
    try:
        barrier(seconds)
    except error as raised:
        assert all(word in str(raised) for word in words), raised
    else:
        raise SystemExit("it came back")

def until_unread(count):
    until = time.monotonic() + 60
    while world.communicator.context.counters()["messages.unread"] < count and time.monotonic() < until:
        time.sleep(0.001)
"""


def test_rank_0_takes_nobody_for_waiting_who_gave_up(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        PRELUDE
        + """
for _ in range(2):
    if rank != 0:
        fails(hmc.HmcTimeoutError, "no answer from rank 0", seconds=0.2)
    dist.barrier()
for late in range(size):
    if rank == late:
        time.sleep(0.5)
        store.set(f"late {late}", "yes")
    barrier(60)
    assert store.check([f"late {late}"]), late
    dist.barrier()
assert world.communicator.context.counters()["messages.unread"] == 0
dist.destroy_process_group()
""",
        ranks=3,
    )


def test_a_late_rank_meets_the_next_call(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        PRELUDE
        + """
for _ in range(3):
    if rank == 0:
        until_unread(1)  # rank 1 is in its call
    if rank != 2:
        fails(hmc.HmcTimeoutError, "rank 2 did not come within 2 s", seconds=2)
        store.add("failed", 1)
        if rank == 0:
            until_unread(1)  # rank 2 is in its call
    else:
        while store.add("failed", 0) % 2 or not store.add("failed", 0):
            time.sleep(0.001)
    barrier(60)
    dist.barrier()
    if rank == 0:
        store.set("failed", "0")
    dist.barrier()
dist.destroy_process_group()
""",
        ranks=3,
    )


def test_a_killed_rank_ends_monitored_barrier_on_all_others(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        PRELUDE
        + """
dist.barrier()
store.add("past the barrier", 1)
while store.add("past the barrier", 0) < size:
    time.sleep(0.001)
if rank == 2:
    time.sleep(0.5)  # rank 1 is in its call
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 3:  # it comes when rank 0 has raised
    store.wait(["raised"], timedelta(seconds=60))
began = time.monotonic()
fails(hmc.PeerLostError, "rank 2", *(["rank 0 reports"] if rank else []), seconds=60)
if rank == 0:
    store.set("raised", "yes")
fails(hmc.PeerLostError, "rank 2", seconds=60)  # and in every later call
assert time.monotonic() - began < 30
store.add("done", 1)
while rank == 0 and store.add("done", 0) < 3:  # it has the store
    time.sleep(0.001)
os._exit(0)
""",
        ranks=4,
        expect={2: -9},
    )


def test_a_rank_that_left_the_group_ends_monitored_barrier(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        PRELUDE
        + """
group = dist.new_group()
dist.barrier()
if rank == 2:
    dist.destroy_process_group(group)
else:
    for _ in range(2):
        began = time.monotonic()
        try:
            group.monitored_barrier(timedelta(seconds=60))
        except hmc.ClosedError as error:
            assert "rank 2" in str(error), error
        else:
            raise SystemExit("it came back")
        assert time.monotonic() - began < 30
dist.barrier()
dist.destroy_process_group()
""",
        ranks=3,
    )


def test_an_interrupt_at_rank_0_is_reported(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        PRELUDE
        + """
if rank == 0:
    def interrupt(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    until_unread(1)
    signal.setitimer(signal.ITIMER_REAL, 1)
    fails(KeyboardInterrupt, seconds=60)
if rank == 1:
    fails(hmc.HmcCancelledError, "rank 0", "KeyboardInterrupt", seconds=60)
dist.barrier()
barrier(60)
dist.destroy_process_group()
""",
        ranks=3,
    )


class _LateWork:
    """A receive whose message comes when it is withdrawn at the deadline."""

    done = False

    def __init__(self, into: bytearray, message: bytes) -> None:
        self._into, self._message = into, message

    def wait(self, timeout: float | None) -> None:
        raise hmc.HmcTimeoutError("not complete")

    def cancel(self) -> None:
        self._into[: len(self._message)] = self._message
        raise hmc.InvalidArgumentError("the operation is already complete")

    def error(self) -> None:
        return None

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(bytes=len(self._message))


class _Late:
    """A Communicator of two ranks with such receives."""

    size = 2

    def __init__(self, rank: int, message: bytes) -> None:
        self.rank, self._message = rank, message
        self.sent: list[tuple[int, bytes]] = []

    def irecv(self, array: bytearray, rank: int, tag: int) -> _LateWork:
        return _LateWork(array, self._message)

    def send(self, array: bytes, rank: int, tag: int, timeout: float) -> None:
        self.sent.append((rank, array))

    def isend(self, array: bytes, rank: int, tag: int) -> None:
        self.sent.append((rank, array))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_message_at_the_deadline_counts(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    def wait_any(works: list[_LateWork], timeout: float) -> None:
        works[0].wait(timeout)

    monkeypatch.setattr(hmc, "wait_any", wait_any)
    message = struct.pack("<qB", 1, 0)  # at rank 0: rank 1 waits in its first call; at rank 1: all came
    communicator: Any = _Late(rank, message)
    MonitoredBarrier(communicator).wait(0.0, False)
    assert communicator.sent == [(1 - rank, message)]


def test_an_answer_to_another_call_at_the_deadline_does_not_count() -> None:
    communicator: Any = _Late(1, struct.pack("<qB", 7, 0))
    with pytest.raises(hmc.HmcTimeoutError, match="no answer from rank 0"):
        MonitoredBarrier(communicator).wait(0.0, False)
    assert communicator.sent == [(0, struct.pack("<qB", 1, 0)), (0, struct.pack("<qB", 1, 1))]


def test_a_barrier_with_a_deadline(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import time
        from datetime import timedelta
        rank, size = start()
        opts = dist.BarrierOptions()
        opts.timeout = timedelta(seconds=0.5)
        pair = dist.new_group([0, 1])
        if rank == 0:
            began = time.monotonic()
            try:
                pair.barrier(opts).wait()
            except hmc.HmcTimeoutError:
                assert 0.4 < time.monotonic() - began < 20
            else:
                raise SystemExit("it came back")
        dist.barrier()
        """
    )
