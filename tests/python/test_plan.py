"""plan() and islands() from Python: tables, bytes that the counters confirm, arguments that make no sense."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from commands import run_hmc

import hmc

EXECUTED = """
comm = hmc.init(devices=["cuda:0"])
me = comm.rank
BYTES = 3 << 20

def moved():
    ranks = range(comm.size)
    paths = [comm.path(r, source="cuda:0", target="cuda:0") for r in ranks]
    return [path.bytes_put + path.bytes_got for path in paths]

def all_gather():
    comm.all_gather(comm.buffer(BYTES, device="cuda:0"), comm.buffer(BYTES // comm.size, device="cuda:0"), timeout=30)

def broadcast():
    comm.broadcast(comm.buffer(BYTES, device="cuda:0"), root=1, timeout=30)

def all_to_all():
    comm.all_to_all(comm.buffer(BYTES, device="cuda:0"), comm.buffer(BYTES, device="cuda:0"), timeout=30)

for call in (all_gather, broadcast, all_to_all):
    plan = comm.plan(call.__name__, BYTES, root=1)
    before = moved()
    comm.barrier(timeout=30)
    call()
    comm.barrier(timeout=30)
    got = [after - earlier for earlier, after in zip(before, moved())]
    want = [0] * comm.size
    for link in plan.links:
        if me in (link.source, link.target):
            want[link.target if link.source == me else link.source] += link.bytes
    got[me] = 0
    assert got == want, (call.__name__, got, want)
    comm.barrier(timeout=30)
print("as planned")
"""


def test_bytes_of_links_are_what_the_paths_count(run_job: Callable[..., str]) -> None:
    out = run_job(EXECUTED, ranks=3, environment=hmc.testing.environment("cuda"))
    assert out.count("as planned") == 3


LOCAL = """
comm = hmc.init()
if comm.rank == 0:  # alone: nobody else takes part
    for door in (comm, comm.local[0]):
        plan = door.plan("all_reduce", 4 << 20, dtype="bfloat16")
        assert plan.call == "all_reduce" and plan.bytes == 4 << 20 and plan.ranks == 2
        assert plan.algorithm.startswith("one pass over shared memory, chunks of "), plan.algorithm
        assert plan.seconds >= plan.lower_bound > 0
        assert plan.runner_up[0] == "by messages: reduce-scatter + all-gather, chunks of 256 KiB" and plan.runner_up[1] > 0
        assert [(link.source, link.target) for link in plan.links] == [(0, 1), (1, 0)]
        assert "estimated" in plan.figures
    assert comm.islands() == ((0, 1),), comm.islands()
comm.barrier(timeout=30)
comm.close()
try:
    comm.plan("all_reduce", 4)
except hmc.ClosedError:
    print("closed")
"""


def test_one_rank_asks_alone(run_job: Callable[..., str]) -> None:
    assert run_job(LOCAL).count("closed") == 2


def test_a_plan_without_a_job_is_a_table() -> None:
    plan = hmc.plan_collective("all_reduce", 1 << 30, 8, latency=5e-6, bandwidth=50e9)
    assert repr(plan) == "<hmc.CollectivePlan all_reduce of 1073741824 bytes: reduce-scatter + all-gather, chunks of 1.008 MiB>"
    bound = 5e-6 + 2 * (1 << 30) * 7 / 8 / 50e9
    assert plan.lower_bound >= bound * 0.999
    assert len(plan.links) == 56
    assert {link.bytes for link in plan.links} == {2 * (1 << 30) // 8}
    assert plan.links[0].basis == "given"
    assert "0 -> 1" in repr(plan.links[0])
    text = str(plan)
    assert all(len(line) <= 80 for line in text.splitlines())
    for word in ("algorithm", "reason", "predicted", "lower bound", "runner-up", "figures", "and 40 more"):
        assert word in text
    small = hmc.plan_collective("barrier", 0, 4)
    assert small.runner_up is None


def test_plans_cannot_be_changed() -> None:
    plan = hmc.plan_collective("broadcast", 8, 3)
    for name in ("seconds", "algorithm", "links", "runner_up"):
        with pytest.raises(AttributeError):
            setattr(plan, name, None)


@pytest.mark.parametrize(
    ("call", "nbytes", "ranks", "options"),
    [
        ("all_reduce", 3, 2, {}),
        ("all_reduce", -4, 2, {}),
        ("all_reduce", 2**63, 2, {}),
        ("all_reduce", 4, 0, {}),
        ("all_reduce", 4, -1, {}),
        ("all_reduce", 4, 2, {"bandwidth": 0.0}),
        ("all_reduce", 4, 2, {"bandwidth": float("nan")}),
        ("all_reduce", 4, 2, {"latency": -1.0}),
        ("all_reduce", 4, 2, {"overhead": float("inf")}),
        ("all_reduce", 4, 2, {"reduction": -1.0}),
        ("broadcast", 4, 2, {"root": 2}),
        ("broadcast", 4, 2, {"root": -1}),
        ("all_gather", 5, 2, {}),
        ("send", 4, 2, {}),
    ],
)
def test_calls_that_make_no_sense_are_refused(call: str, nbytes: int, ranks: int, options: dict[str, float]) -> None:
    with pytest.raises(hmc.InvalidArgumentError):
        hmc.plan_collective(call, nbytes, ranks, **options)  # type: ignore[arg-type]


def test_types_are_checked() -> None:
    with pytest.raises(TypeError):
        hmc.plan_collective("all_reduce", 4.5, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hmc.plan_collective("all_reduce", 4, 2, dtype="complex64")
    with pytest.raises(hmc.UnsupportedError, match="256"):
        hmc.plan_collective("all_reduce", 4, 257)


def islands(*cards: int, nic: float = 50e9) -> list[hmc.IslandCards]:
    return [hmc.IslandCards(f"{n} cards", n, inside=400e9, nic=nic, memory=5e12, per_host=min(n, 8)) for n in cards]


def test_shares_by_bandwidth_beat_equal_shares() -> None:
    nbytes = 1 << 34
    plan = hmc.plan_islands(nbytes, islands(8, 8), border=[1e9, 2e9, 4e9])
    assert plan.algorithm == "hierarchical"
    assert plan.seconds == pytest.approx(nbytes / 7e9, rel=0.01)
    assert plan.seconds >= plan.lower_bound >= nbytes / 7e9
    assert plan.even_seconds / plan.seconds == pytest.approx(7 / 3, rel=0.01)
    assert plan.busiest == "border links of 8 cards"
    assert [island.share for island in plan.islands] == [0.5, 0.5]
    assert all(len(line) <= 80 for line in str(plan).splitlines())
    assert repr(plan) == "<hmc.IslandPlan of 16 cards: hierarchical>"
    assert plan.runner_up[0] == "flat"


def test_thousands_of_cards_are_planned() -> None:
    plan = hmc.plan_islands(1 << 30, islands(5120, 5120))
    assert plan.cards == 10240
    assert plan.runner_up[1] > plan.seconds > plan.lower_bound > 0


@pytest.mark.parametrize("call", ["all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast"])
def test_every_hierarchical_call_is_planned_over_islands(call: str) -> None:
    nbytes = 1 << 34
    plan = hmc.plan_islands(nbytes, islands(8, 8, nic=1e9), call=call)
    assert (plan.call, plan.algorithm) == (call, "hierarchical")
    assert plan.lower_bound <= plan.seconds < plan.runner_up[1]
    # Each byte crosses the border once, or its half, and every card has a part.
    crossing = nbytes / 2 if call in ("reduce_scatter", "all_gather") else nbytes
    assert plan.seconds == pytest.approx(crossing / 8e9, rel=0.01)
    assert str(plan).startswith(f"{call} of 16 GiB among 16 cards")
    data = json.loads(run_hmc("plan", call, "--islands", "8xH200,8xMI325X", "--json").stdout)
    assert data["call"] == call


@pytest.mark.parametrize("call", ["gather", "scatter", "all_to_all", "barrier"])
def test_a_call_without_a_hierarchical_plan_says_so(call: str) -> None:
    with pytest.raises(hmc.UnsupportedError, match=f"no hierarchical {call}"):
        hmc.plan_islands(1 << 20, islands(8, 8), call=call)
    result = run_hmc("plan", call, "--islands", "8xH200,8xMI325X")
    assert (result.returncode, f"no hierarchical {call}" in result.stderr) == (2, True)


def test_islands_that_make_no_sense_are_refused() -> None:
    for bad in (
        [],
        islands(12),
        [hmc.IslandCards("x", 8, inside=0, nic=1, memory=1)],
        [hmc.IslandCards("x", 8, inside=1, nic=float("nan"), memory=1)],
        [hmc.IslandCards("x", -8, inside=1, nic=1, memory=1)],
    ):
        with pytest.raises(hmc.InvalidArgumentError):
            hmc.plan_islands(8, bad)
    with pytest.raises(hmc.InvalidArgumentError):
        hmc.plan_islands(8, islands(8, 8), border=[1e9] * 9)
    with pytest.raises(hmc.InvalidArgumentError):
        hmc.plan_islands(8, islands(8, 8), nic_latency=-1)
    with pytest.raises(hmc.InvalidArgumentError, match="no_such"):
        hmc.plan_islands(8, islands(8, 8), call="no_such")


def test_the_command_compares_algorithms() -> None:
    result = run_hmc("plan", "--islands", "8xh200,8xMI325X", "--bytes", "1G", "--even")
    assert result.returncode == 0, result.stderr
    for word in ("hierarchical", "flat", "busiest", "lower bound", "8xH200", "8xMI325X", "even split"):
        assert word in result.stdout
    data = json.loads(run_hmc("plan", "all_to_all", "--ranks", "3", "--bytes", "3M", "--latency", "1us", "--json").stdout)
    assert data["algorithm"] == "direct"
    assert [link["bytes"] for link in data["links"]] == [1 << 20] * 6
    assert data["seconds"] >= data["lower_bound"] >= 1e-6 + 2 * (1 << 20) / 50e9
    assert "is no collective" in run_hmc("plan", "nothing").stderr
