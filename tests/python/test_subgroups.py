"""Communicators that their members make alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc

JOB = """
import numpy as np, os, hmc
comm = hmc.init()
threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
ranks = [2, 0]
groups = [comm.subgroup(ranks, 100 + i) for i in range(8)] if comm.rank in ranks else []
comm.barrier(timeout=30)
if groups:
    for i, group in enumerate(groups):
        assert group.size == 2 and ranks[group.rank] == comm.rank
        x = np.arange(1000, dtype=np.float32) * (group.rank + i)
        group.all_reduce(x, timeout=30)
        assert np.array_equal(x, np.arange(1000, dtype=np.float32) * (1 + 2 * i))
        # Messages stay in their group.
        mine = np.full(3, 10 * i + group.rank, np.int32)
        sent = group.isend(mine, 1 - group.rank, tag=1)
    for i, group in reversed(list(enumerate(groups))):
        got = np.empty(3, np.int32)
        info = group.recv(got, 1 - group.rank, tag=1, timeout=30)
        assert info.source == 1 - group.rank and got.tolist() == [10 * i + 1 - group.rank] * 3
    # One pair is connected, of which the groups take nothing more.
    assert len(os.listdir("/proc/self/task")) <= threads + 3, os.listdir("/proc/self/task")
    assert len(os.listdir("/proc/self/fd")) <= files + 20, os.listdir("/proc/self/fd")
    for group in groups[::2]:
        group.close()
    groups[1].barrier(timeout=30)
comm.barrier(timeout=30)
comm.close()
"""


def test_members_alone_make_it_and_share_connections(run_job: Callable[..., str]) -> None:
    run_job(JOB, ranks=3)


def test_a_killed_member_ends_its_groups_only(run_job: Callable[..., str]) -> None:
    out = run_job(
        """
import os, signal
import numpy as np, hmc
comm = hmc.init()
both, rest = comm.subgroup([0, 1, 2], 50), None
if comm.rank != 1:
    rest = comm.subgroup([0, 2], 51)
comm.barrier(timeout=30)
if comm.rank == 1:  # its death would end the barrier of one that is still in it
    for other in (0, 2):
        comm.recv(np.zeros(1), other, timeout=30)
    os.kill(os.getpid(), signal.SIGKILL)
comm.send(np.zeros(1), 1, timeout=30)
try:
    for _ in range(1000):
        both.all_reduce(np.ones(10), timeout=30)
except hmc.PeerLostError as error:
    assert "rank 1" in str(error), error
else:
    raise SystemExit("the group has not noticed")
for _ in range(10):
    x = np.ones(10)
    rest.all_reduce(x, timeout=30)
    assert x.tolist() == [2] * 10
print("alive", flush=True)
os._exit(0)
""",
        ranks=3,
        expect=128 + 9,
    )
    assert out.count("alive") == 2, out


def test_they_share_memory_when_asked(run_job: Callable[..., str]) -> None:
    run_job(
        """
import numpy as np, hmc
comm = hmc.init()
group = comm.subgroup([2, 0, 1], 9)
comm.barrier(timeout=30)
group.share_memory(timeout=30)
fused = lambda: group.context.counters().get("fused.count", 0)
before = fused()
for count in (0, 1, 1001, 300_001):
    x = np.arange(count, dtype=np.int32) * (group.rank + 1)
    group.all_reduce(x, timeout=30)
    assert np.array_equal(x, np.arange(count, dtype=np.int32) * 6), count
assert fused() >= before + 3, (before, fused())
late = comm.subgroup([0, 1, 2], 10)
comm.barrier(timeout=30)
late.barrier(timeout=30)
try:
    late.share_memory(timeout=30)
except hmc.InvalidArgumentError as error:
    assert "before its first one" in str(error), error
else:
    raise SystemExit("a group that has begun shares memory")
comm.close()
""",
        ranks=3,
    )


def test_arguments_that_cannot_be() -> None:
    with hmc.init(0, 1) as comm:
        for ranks, number in (([], 5), ([1], 5), ([0, 0], 5), ([0], 0), ([0], 1), ([0], 1 << 31), ([0], -1)):
            with pytest.raises(hmc.InvalidArgumentError):
                comm.subgroup(ranks, number)
        group = comm.subgroup([0], 5)
        with pytest.raises(hmc.InvalidArgumentError, match="number 5 is that of a group here"):
            comm.subgroup([0], 5)
        group.barrier(timeout=10)
        group.close()
        with pytest.raises(hmc.InvalidArgumentError, match="number 5 is that of a group here, or of one that was closed"):
            comm.subgroup([0], 5)
        comm.subgroup([0], 7).close()
        with pytest.raises(hmc.ClosedError):
            group.subgroup([0], 6)
