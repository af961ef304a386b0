"""algorithm= from Python: every call, door and form takes the names that plans print, and refuses others with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from commands import run_hmc

import hmc

NAMED = """
comm = hmc.init()
me, n = comm.rank, comm.size

def given(rank, count):
    return np.random.default_rng([rank, count]).standard_normal(count).astype("f4")

def total(count):
    want = given(0, count)
    for rank in range(1, n):
        want = want + given(rank, count)
    return want

def all_reduce(door, count, name):
    out = np.zeros(count, "f4")
    door.all_reduce(out, given(me, count), algorithm=name, timeout=30)
    assert np.array_equal(out, total(count))
    out = given(me, count)
    door.iall_reduce(out, algorithm=name).wait(30)
    assert np.array_equal(out, total(count))

def reduce_scatter(door, count, name):
    mine = given(me, count * n)
    for out in (np.zeros(count, "f4"), np.zeros(count, "f4")):
        door.reduce_scatter(out, mine, algorithm=name, timeout=30)
        assert np.array_equal(out, total(count * n)[count * me : count * (me + 1)])
    door.ireduce_scatter(out, mine, counts=[count] * n, algorithm=name).wait(30)
    assert np.array_equal(out, total(count * n)[count * me : count * (me + 1)])

def reduce(door, count, name):
    out = np.zeros(count, "f4")
    door.reduce(out, given(me, count), root=n - 1, algorithm=name, timeout=30)
    assert me != n - 1 or np.array_equal(out, total(count))
    door.ireduce(out, given(me, count), root=0, algorithm=name).wait(30)
    assert me != 0 or np.array_equal(out, total(count))

def all_gather(door, count, name):
    for work in (False, True):
        out = np.zeros((n, count), "f4")
        if work:
            door.iall_gather(out, given(me, count), counts=[count] * n, algorithm=name).wait(30)
        else:
            door.all_gather(out, given(me, count), algorithm=name, timeout=30)
        assert all(np.array_equal(out[r], given(r, count)) for r in range(n))

def broadcast(door, count, name):
    for root in (0, n - 1):
        out = given(9, count) if me == root else np.zeros(count, "f4")
        door.broadcast(out, root, algorithm=name, timeout=30)
        assert np.array_equal(out, given(9, count))
    out = given(8, count) if me == 0 else np.zeros(count, "f4")
    door.ibroadcast(out, algorithm=name).wait(30)
    assert np.array_equal(out, given(8, count))

def all_to_all(door, count, name):
    out = np.zeros((n, count), "f4")
    door.all_to_all(out, given(me, n * count), algorithm=name, timeout=30)
    door.iall_to_all(out, given(me, n * count).copy(), algorithm=name).wait(30)
    assert all(np.array_equal(out[r], given(r, n * count)[count * me : count * (me + 1)]) for r in range(n))

calls = {all_reduce: 1, reduce_scatter: n, reduce: 1, all_gather: n, broadcast: 1, all_to_all: n}
tried = 0
for call, blocks in calls.items():
    for count in (0, 1, 1001, 70_001):
        for door in (comm, comm.local[0]):
            plan = door.plan(call.__name__, 4 * count * blocks)
            assert plan.algorithms and any(plan.algorithm.startswith(name) for name in plan.algorithms), plan
            for name in (None, plan.algorithm, *plan.algorithms):
                call(door, count, name)
                tried += 1
for name in comm.plan("all_reduce", 4000).algorithms:
    array = given(me, 1000)
    comm.all_reduce({comm.local[0]: array}, algorithm=name)
    assert np.array_equal(array, total(1000))

for bad, error in (
    (lambda: comm.all_reduce(np.zeros(4), algorithm="ring"), hmc.InvalidArgumentError),
    (lambda: comm.iall_reduce(np.zeros(4), algorithm="doubling"), hmc.InvalidArgumentError),
    (lambda: comm.broadcast(np.zeros(4), algorithm="doubling"), hmc.InvalidArgumentError),
    (lambda: comm.all_reduce(np.zeros(4), algorithm=7), TypeError),
    (lambda: comm.all_reduce(np.zeros(4), algorithm=b"direct"), TypeError),
    (lambda: comm.plan("all_reduce", 4, algorithm="ring"), hmc.InvalidArgumentError),
):
    try:
        bad()
    except error as raised:
        if error is hmc.InvalidArgumentError:
            assert "it can be carried out by \\"" in str(raised), raised
    else:
        raise SystemExit("accepted")
comm.barrier(timeout=30)
print("tried", tried)
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_name_carries_out_the_call(run_job: Callable[..., str], ranks: int) -> None:
    assert run_job(NAMED, ranks=ranks).count("tried") == ranks


DISAGREE = """
comm = hmc.init()
names = ("whole inputs to every rank", "reduce-scatter + all-gather")
try:
    comm.all_reduce(np.ones(1000, "f4"), algorithm=names[comm.rank], timeout=30)
except hmc.InvalidArgumentError as error:
    assert all(name in str(error) for name in names), error
    print("told")
"""


def test_ranks_that_disagree_are_told_both_names(run_job: Callable[..., str]) -> None:
    assert run_job(DISAGREE).count("told") == 2


def test_plans_of_named_algorithms() -> None:
    chosen = hmc.plan_collective("all_reduce", 1 << 20, 4)
    assert chosen.algorithms == ("whole inputs to every rank", "reduce-scatter + all-gather")
    named = hmc.plan_collective("all_reduce", 1 << 20, 4, algorithm=chosen.algorithms[0])
    assert named.algorithm == chosen.algorithms[0]
    assert named.seconds > chosen.seconds
    assert named.runner_up == (chosen.algorithm, chosen.seconds)
    assert chosen.runner_up == (named.algorithm, named.seconds)
    exact = hmc.plan_collective("all_reduce", 1 << 20, 4, exact=True)
    assert exact.seconds > chosen.seconds
    assert "Exact" in exact.reason
    with pytest.raises(hmc.InvalidArgumentError, match="no such algorithm"):
        hmc.plan_collective("all_reduce", 1 << 20, 4, algorithm="ring")


def test_the_command_plans_named_algorithms() -> None:
    result = run_hmc("plan", "--bytes", "1M", "--ranks", "4", "--algorithm", "whole inputs to every rank", "--exact", "--json", "-")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["algorithm"] == "whole inputs to every rank"
    assert data["algorithms"] == ["whole inputs to every rank", "reduce-scatter + all-gather"]
    assert "Exact" in data["reason"]
    refused = run_hmc("plan", "--algorithm", "ring")
    assert refused.returncode == 2
    assert "no such algorithm" in refused.stderr
    assert run_hmc("plan", "--islands", "8xH200,8xMI325X", "--algorithm", "flat").returncode == 2
