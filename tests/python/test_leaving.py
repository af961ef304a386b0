"""Ranks that close a Communicator when their own last call is over: no one else's call is spoilt, and who waits in vain is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PRELUDE = """
import os, threading, time
import numpy as np, hmc
comm = hmc.init()
def refusal(call, *arguments, **options):
    start = time.monotonic()
    try:
        call(*arguments, **options)
    except hmc.HmcError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    raise SystemExit("not refused")
"""
FUSED = pytest.mark.parametrize("fused", ["1", "0"])

# What rank 0 has to do in it is over before the others begin.
EARLY = {
    "broadcast": ("x = np.full(16, 7 + i if me == 0 else 0); group.broadcast(x, 0, timeout=60)", "x[3] == 7 + i"),
    "scatter": (
        "x = np.empty(2, int); group.scatter(x, np.arange(2 * n) + i if me == 0 else None, 0, timeout=60)",
        "x.tolist() == [2 * me + i, 2 * me + i + 1]",
    ),
    "gather": (
        "x = np.empty(2 * n, int); group.gather(x if me == 1 else None, np.arange(2) + 2 * me + i, 1, timeout=60)",
        "me != 1 or x.tolist() == list(range(i, i + 2 * n))",
    ),
    "reduce": (
        "x = np.empty(5, int); group.reduce(x if me == 1 else None, np.arange(5) * (me + i), 1, timeout=60)",
        "me != 1 or np.array_equal(x, np.arange(5) * (n * (n - 1) // 2 + n * i))",
    ),
}


@FUSED
@pytest.mark.parametrize("how", ["split", "shrink", "share_memory"])
@pytest.mark.parametrize("call", EARLY)
def test_a_rank_that_is_done_early_closes(run_job: Callable[..., str], call: str, how: str, fused: str) -> None:
    made, checked = EARLY[call]
    run_job(
        PRELUDE
        + f"""
if {how!r} == "share_memory":
    group = comm.subgroup(range(comm.size), 9)
    comm.barrier(timeout=60)
    group.share_memory(timeout=60)
else:
    group = comm.split(0, timeout=60) if {how!r} == "split" else comm.shrink(timeout=60)
me, n = group.rank, group.size
comm.barrier(timeout=60)
if me:
    time.sleep(0.2 * me)
for i in range(4):
    {made}
    assert {checked}, (i, x)
group.close()
comm.barrier(timeout=60)
comm.close()
""",
        ranks=3,
        environment={"HMC_FUSED": fused},
    )


@FUSED
def test_each_rank_that_leaves_is_named(run_job: Callable[..., str], fused: str) -> None:
    run_job(
        PRELUDE
        + """
group = comm.split(0, timeout=60)
group.barrier(timeout=60)
if comm.rank == 0:  # its part is over
    group.gather(None, np.ones(4), root=2, timeout=60)
    group.close()
elif comm.rank == 1:  # without its part
    time.sleep(0.3)
    group.close()
else:
    name, text, seconds = refusal(group.gather, np.ones(12), np.ones(4), root=2, timeout=40)
    assert name == "ClosedError" and "rank 1" in text and seconds < 20, (name, text, seconds)
comm.barrier(timeout=60)
comm.close()
""",
        ranks=3,
        environment={"HMC_FUSED": fused},
    )


@pytest.mark.parametrize("end", ["abort there", "abort", "close there", "close", "timeout"])
def test_share_memory_ends_with_its_group(run_job: Callable[..., str], end: str) -> None:
    """Also where the rank that makes the segment does not come."""
    run_job(
        PRELUDE
        + f"""
end = {end!r}
group = comm.subgroup([0, 1, 2], 9)
comm.barrier(timeout=60)
if comm.rank == 2:
    if not end.endswith("there") and end != "timeout":
        threading.Timer(0.3, getattr(group, end)).start()
    name, text, seconds = refusal(group.share_memory, timeout=40)
    assert seconds < 20, (name, text, seconds)
elif comm.rank == 1:
    time.sleep(0.3)
    if end == "timeout":
        assert refusal(group.share_memory, timeout=0.2)[0] == "HmcTimeoutError"
    elif end.endswith("there"):
        getattr(group, end.split()[0])()
comm.barrier(timeout=60)
comm.close()
""",
        ranks=3,
    )


def test_memory_that_was_dropped_is_not_waited_for(run_job: Callable[..., str]) -> None:
    """A rank keeps the memory of 256 groups that it has not asked for. The oldest group goes by messages."""
    run_job(
        PRELUDE
        + """
group = comm.subgroup([0, 1], 2)
if comm.rank == 0:
    sharing = threading.Thread(target=group.share_memory, kwargs={"timeout": 50})
    sharing.start()
    time.sleep(0.3)
    for number in range(256):
        refusal(comm.subgroup([0, 1], 3 + number).share_memory, timeout=0)
    comm.barrier(timeout=50)
    sharing.join()
else:
    comm.barrier(timeout=50)
    time.sleep(1)  # segments do not come by the barrier's way
    group.share_memory(timeout=50)
group.all_reduce(x := np.arange(1001) * (comm.rank + 1), timeout=40)
assert np.array_equal(x, np.arange(1001) * 3)
comm.barrier(timeout=50)
comm.close()
""",
    )


@pytest.mark.timeout(300)
def test_a_close_beside_a_mismatch_reaches_the_others(run_job: Callable[..., str]) -> None:
    """A polling thread ends the call while close() waits for the engine."""
    run_job(
        PRELUDE
        + """
if comm.rank == 1:
    polling = [threading.Thread(target=comm.wait_notify, args=(0, 9 + i), kwargs={"timeout": 270}) for i in range(2)]
    [one.start() for one in polling]
for number in range(2000):
    group = comm.split(0, timeout=30)
    start = float(comm.exchange_bytes(repr(time.monotonic() + 0.0005).encode(), timeout=30)[0]) + np.random.random() * 3e-4
    while time.monotonic() < start:
        pass
    if comm.rank == 1:
        work = group.iall_reduce(np.ones(9))
        group.close()
    else:
        name, text, seconds = refusal(group.barrier, timeout=60)
        assert seconds < 30 and "rank 1 (" in text, (number, name, text, seconds)
if comm.rank == 0:
    comm.notify(1, 9)
    comm.notify(1, 10)
else:
    [one.join() for one in polling]
comm.barrier(timeout=30)
comm.close()
""",
        timeout=280,
    )


def test_segments_that_nobody_takes_are_not_kept(run_job: Callable[..., str]) -> None:
    run_job(
        PRELUDE
        + """
files = len(os.listdir("/proc/self/fd"))
for number in range(270):
    group = comm.subgroup([0, 1], 100 + number)
    comm.barrier(timeout=60)
    if comm.rank == 0:
        refusal(group.share_memory, timeout=0.002)
    group.close()
    comm.barrier(timeout=60)
end = time.monotonic() + 20
while len(os.listdir("/proc/self/fd")) > files + 8:  # segments do not come by the barrier's way
    assert time.monotonic() < end, (files, len(os.listdir("/proc/self/fd")))
    time.sleep(0.01)
with comm.split(0, timeout=40) as group:
    group.all_reduce(x := np.arange(1001) * (comm.rank + 1), timeout=40)
    assert np.array_equal(x, np.arange(1001) * 3)
comm.close()
""",
        ranks=2,
    )


# How the group ends on rank 1: what it does, and the error of the others.
ENDS = {
    "close": ("group.close()", "ClosedError", "rank 0"),
    "abort": ("group.abort('enough')", "HmcCancelledError", "rank 0"),
    "timeout": ("assert refusal(group.barrier, timeout=0.2)[0] == 'HmcTimeoutError'", "HmcTimeoutError", "rank 0"),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_group_that_ends_before_others_use_it(run_job: Callable[..., str], end: str, connected: bool, when: str) -> None:
    """Ranks that make it later are told, and those that were never connected to the rank that ended it."""
    ended, error, named = ENDS[end]
    run_job(
        PRELUDE
        + f"""
if {connected}:
    comm.barrier(timeout=60)
told = np.zeros(1, np.uint8)
group = None
if comm.rank == 1:
    if {when == "after"}:
        comm.recv(told, src=0, timeout=60)
    group = comm.subgroup([1, 2], 9)
    {ended}
    comm.send(told, dst=0, timeout=60)
elif comm.rank == 0:  # so that ranks 1 and 2 are not connected to each other
    if {when == "after"}:
        comm.recv(told, src=2, timeout=60)
        comm.send(told, dst=1, timeout=60)
    comm.recv(told, src=1, timeout=60)
    comm.send(told, dst=2, timeout=60)
else:
    if {when == "after"}:
        group = comm.subgroup([1, 2], 9)
        comm.send(told, dst=0, timeout=60)
    comm.recv(told, src=0, timeout=60)
    group = group or comm.subgroup([1, 2], 9)
    # What rank 1 has sent in a call that it gave up then may still complete that call here.
    name, text, seconds = refusal(lambda: [group.barrier(timeout=40) for _ in range(2)])
    assert name == {error!r} and {named!r} in text and seconds < 20, (name, text, seconds)
comm.barrier(timeout=60)
comm.close()
""",
        ranks=3,
    )


@pytest.mark.parametrize("waits", [True, False])
def test_a_receive_of_a_rank_that_closed_ends_after_its_messages(run_job: Callable[..., str], waits: bool) -> None:
    run_job(
        PRELUDE
        + f"""
group = comm.subgroup([0, 1, 2], 9)
small, large, none = np.zeros(5, int), np.zeros(400_001, int), np.zeros(3, int)
if comm.rank == 1:
    if {waits}:
        time.sleep(0.3)
    sent = [group.isend(x, 0, tag=4) for x in (np.arange(5), np.arange(400_001))]
    group.close()
    for work in sent:
        work.wait(timeout=40)
elif comm.rank == 0:
    if not {waits}:
        time.sleep(0.3)
    group.recv(small, 1, tag=4, timeout=40)
    group.recv(large, 1, tag=4, timeout=40)
    assert np.array_equal(small, np.arange(5)) and np.array_equal(large, np.arange(400_001))
    for call in (group.recv, group.send):
        name, text, seconds = refusal(call, none, 1, tag=4, timeout=40)
        assert name == "ClosedError" and "rank 1 (" in text and "24 bytes, tag 4" in text and seconds < 20, (name, text, seconds)
comm.barrier(timeout=60)
comm.close()
""",
        ranks=3,
    )
