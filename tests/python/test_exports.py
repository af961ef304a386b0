"""Exports of plans: independent readers carry out what the files say, and get what the collective promises."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_hmc
from plan_readers import Msccl, Node, read_chakra, run_schedule

import hmc

KIB = 1024
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def distinct(call: str, ranks: int, units: int, seed: int = 1) -> list[list[int]]:
    """Inputs of every rank; of a buffer of ``units`` for the calls that have more output than input, a rank's share."""
    size = units // ranks if call in ("all_gather", "gather") else units
    numbers = random.Random(seed)
    return [[numbers.getrandbits(80) for _ in range(size)] for _ in range(ranks)]


def promised(call: str, inputs: list[list[int]], root: int = 0) -> list[list[int] | None]:
    """Outputs by rank; None: the call promises nothing there."""
    ranks, units = len(inputs), len(inputs[0])
    block = units // ranks
    sums = [sum(values) for values in zip(*inputs, strict=True)]
    together = [value for values in inputs for value in values]
    at_root: dict[str, list[int]] = {"reduce": sums, "gather": together}
    if call in at_root:
        return [at_root[call] if rank == root else None for rank in range(ranks)]
    outputs: list[list[int] | None] = []
    for rank in range(ranks):
        part = slice(rank * block, (rank + 1) * block)
        every: dict[str, list[int] | None] = {
            "all_reduce": sums,
            "reduce_scatter": sums[part],
            "all_gather": together,
            "all_to_all": [value for values in inputs for value in values[part]],
            "broadcast": inputs[root] if rank != root else None,
            "scatter": inputs[root][part],
        }
        outputs.append(every[call])
    return outputs


def planned(call: str, nbytes: int, ranks: int, algorithm: str | None = None, root: int = 0) -> hmc.CollectivePlan:
    return hmc.plan_collective(call, nbytes, ranks, algorithm=algorithm, root=root)


def by_every_algorithm(call: str, nbytes: int, ranks: int, root: int = 0) -> list[hmc.CollectivePlan]:
    names = planned(call, nbytes, ranks, root=root).algorithms
    return [planned(call, nbytes, ranks, name, root) for name in names]


@pytest.mark.parametrize("call", [*REDUCING, "all_gather", "broadcast", "gather", "scatter", "all_to_all"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_schedules_do_what_the_call_promises(call: str, ranks: int) -> None:
    # Bytes of a number: a reduction's parts are whole elements, a broadcast's whole bytes.
    element = 4 if call in REDUCING else 1 if call == "broadcast" else 4096
    root = ranks - 1
    for units in (0, ranks, 3 * ranks, 257 * ranks):
        inputs = distinct(call, ranks, units)
        for plan in by_every_algorithm(call, units * element, ranks, root):
            in_place = root if call == "broadcast" else None  # it has one array
            outputs = run_schedule(plan.schedule(), inputs, element, units, in_place)
            for rank, (found, wanted) in enumerate(zip(outputs, promised(call, inputs, root), strict=True)):
                assert wanted is None or found == wanted, (plan, rank)


def test_schedules_agree_with_the_bytes_of_the_links() -> None:
    for call, nbytes, ranks in (("all_reduce", 12 << 20, 3), ("all_to_all", 16 * KIB, 16), ("broadcast", 1 << 20, 5)):
        plan = planned(call, nbytes, ranks)
        sent: Counter[tuple[int, int]] = Counter()
        for rank, steps in enumerate(plan.schedule()):
            for step in steps:
                if step.kind == "send" and step.peer != rank:
                    sent[rank, step.peer] += step.bytes
        assert sent == {(link.source, link.target): link.bytes for link in plan.links}
    assert planned("all_reduce", 64, 2).element == 4
    assert hmc.plan_collective("all_reduce", 64, 2, dtype="float64").element == 8
    assert planned("all_gather", 64, 2).element == 0


MSCCL_CASES = [
    ("all_reduce", 4 * KIB, 2),
    ("all_reduce", 3 * KIB, 3),
    ("all_reduce", 64 * KIB, 8),
    ("all_reduce", 8 << 20, 4),
    ("all_reduce", 15 << 20, 5),
    ("all_reduce", 64 << 20, 8),
    ("reduce_scatter", 4 * KIB, 2),
    ("reduce_scatter", 24 << 20, 6),
    ("all_gather", 4 * KIB, 4),
    ("all_gather", 6 * KIB, 3),
    ("all_gather", 7 << 20, 7),
    ("all_to_all", 8 * KIB, 2),
    ("all_to_all", 16 * KIB, 16),
    ("all_to_all", 1500, 5),
    ("all_to_all", 12 << 20, 3),
]


@pytest.mark.parametrize(("call", "nbytes", "ranks"), MSCCL_CASES)
def test_msccl_algorithms_give_the_result(tmp_path: Path, call: str, nbytes: int, ranks: int) -> None:
    for plan in by_every_algorithm(call, nbytes, ranks):
        (file,) = plan.export("msccl", tmp_path / "algorithm.xml")
        algorithm = Msccl(file)
        attributes = algorithm.algo.attrib
        assert attributes["coll"] == call.replace("_", "")
        assert attributes["minBytes"] == attributes["maxBytes"] == str(nbytes)
        assert int(attributes["nchunksperloop"]) == max(max(sizes["i"], sizes["o"]) for sizes in algorithm.sizes)
        assert max(len(block) for block in algorithm.blocks.values()) <= 256
        inputs = distinct(call, ranks, max(algorithm.sizes[0]["i"], algorithm.sizes[0]["o"]))
        wanted = promised(call, inputs)
        for capacity, seed in ((0, 1), (0, 2), (1, 3), (8, 4), (1 << 30, 5)):
            assert algorithm.run(inputs, capacity, seed) == wanted, (plan, capacity)


def test_msccl_refuses_by_name_what_it_cannot_hold(tmp_path: Path) -> None:
    file = tmp_path / "algorithm.xml"
    divided = "reduce-scatter + all-gather"
    for call, nbytes, ranks, algorithm, why in (
        ("all_reduce", (1 << 20) + 4, 4, divided, "equal chunks"),
        ("all_reduce", 1 << 30, 8, divided, "equal chunks"),
        ("all_reduce", 4, 4, divided, "send no bytes"),
        ("all_gather", 0, 4, None, "send no bytes"),
        ("broadcast", 4 * KIB, 4, None, "no root"),
        ("barrier", 0, 4, None, "no root"),
        ("all_reduce", 4 * KIB, 1, None, "one rank"),
        ("all_to_all", 64 << 20, 64, None, "thread blocks of a rank"),
        ("all_reduce", 96 << 20, 4, divided, "steps of a thread block"),
    ):
        with pytest.raises(hmc.UnsupportedError, match=why):
            planned(call, nbytes, ranks, algorithm).export("msccl", file)
    assert not file.exists()
    for nowhere in ("", ".."):
        with pytest.raises(hmc.InvalidArgumentError, match="names no file"):
            planned("all_reduce", 64, 2).export("chakra", nowhere)
    with pytest.raises(hmc.InvalidArgumentError, match="chakra, msccl"):
        planned("all_reduce", 64, 2).export("json", file)
    with pytest.raises(FileNotFoundError):
        planned("all_reduce", 4 * KIB, 2).export("msccl", tmp_path / "nowhere" / "algorithm.xml")


def test_schedules_of_too_many_steps_are_refused() -> None:
    with pytest.raises(hmc.UnsupportedError, match="fewer bytes or ranks"):
        planned("all_reduce", 1 << 30, 64).schedule()
    assert planned("all_reduce", 8 << 20, 64).schedule()


def check_trace(plan: hmc.CollectivePlan, files: tuple[Path, ...]) -> None:
    """Ranks, sizes, dependencies; messages have two ends; the traces of all ranks can be carried out."""
    assert len(files) == plan.ranks
    traces: list[list[Node]] = []
    for rank, file in enumerate(files):
        version, metadata, nodes = read_chakra(file)
        assert version == "0.0.4"
        assert metadata["collective"] == plan.call
        assert metadata["algorithm"] == plan.algorithm
        assert metadata["rank"] == (7, rank)
        assert metadata["ranks"] == (7, plan.ranks)
        assert metadata["bytes"] == (13, plan.bytes)
        traces.append(nodes)
    sent: dict[tuple[int, int, int], int] = {}
    received: dict[tuple[int, int, int], int] = {}
    for rank, (nodes, steps) in enumerate(zip(traces, plan.schedule(), strict=True)):
        assert [node.id for node in nodes] == list(range(len(steps)))
        for node, step in zip(nodes, steps, strict=True):
            assert sorted(node.data_deps) == sorted(step.after)
            assert node.name == f"{plan.call}.{step.kind}.{node.id}"
            assert node.attr["is_cpu_op"] == (27, 0)
            if node.type == 4:
                operations = (len(step.sources) - 1) * step.bytes // plan.element if step.kind == "reduce" else 0
                assert node.attr["num_ops"] == (9, operations)
                assert node.attr["tensor_size"] == (13, step.bytes)
                continue
            numbers = {name: node.attr[name][1] for name in ("comm_src", "comm_dst", "comm_tag")}
            message = (numbers["comm_src"], numbers["comm_dst"], numbers["comm_tag"])
            kind, size = node.attr["comm_size"]
            assert kind == 9
            assert {"send": 5, "receive": 6}[step.kind] == node.type
            assert message[0 if node.type == 5 else 1] == rank
            ends = sent if node.type == 5 else received
            assert message not in ends
            ends[message] = size
    assert sent == received
    carry_out(traces)
    by_link: Counter[tuple[int, int]] = Counter()
    for (source, target, _), size in sent.items():
        by_link[source, target] += size
    for link in plan.links:
        assert by_link[link.source, link.target] == link.bytes


def carry_out(traces: list[list[Node]]) -> None:
    done: list[set[int]] = [set() for _ in traces]
    sent: set[tuple[int, ...]] = set()
    progress = True
    while progress:
        progress = False
        for rank, nodes in enumerate(traces):
            for node in nodes:
                if node.id in done[rank] or not done[rank].issuperset(node.data_deps):
                    continue
                message = tuple(node.attr.get(name, (0, 0))[1] for name in ("comm_src", "comm_dst", "comm_tag"))
                if node.type == 6 and message not in sent:
                    continue
                if node.type == 5:
                    sent.add(message)
                done[rank].add(node.id)
                progress = True
    assert [len(each) for each in done] == [len(nodes) for nodes in traces]


@pytest.mark.parametrize(
    ("call", "nbytes", "ranks"),
    [
        ("all_reduce", (3 << 20) + 4, 3),
        ("all_reduce", 0, 2),
        ("all_reduce", 4, 5),
        ("reduce_scatter", 5 << 20, 5),
        ("reduce", 1 << 20, 4),
        ("all_gather", 8 << 20, 8),
        ("broadcast", 1_000_001, 3),
        ("all_to_all", 16 * KIB, 16),
        ("all_to_all", 8 << 20, 2),
        ("barrier", 0, 6),
        ("all_reduce", 64, 1),
    ],
)
def test_chakra_traces_are_the_schedule(tmp_path: Path, call: str, nbytes: int, ranks: int) -> None:
    pytest.importorskip("google.protobuf")
    for plan in by_every_algorithm(call, nbytes, ranks):
        files = plan.export("chakra", str(tmp_path / "trace"))
        assert [file.name for file in files] == [f"trace.{rank}.et" for rank in range(ranks)]
        check_trace(plan, files)


def test_chakra_without_protobuf_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hmc._exports import chakra

    chakra._classes.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(ImportError, match="pip install protobuf"):
        planned("all_reduce", 64, 2).export("chakra", tmp_path / "trace")
    assert list(tmp_path.iterdir()) == []


SHARED = """
comm = hmc.init()
plan = comm.plan("all_reduce", 1 << 20)
try:
    plan.schedule()
except hmc.UnsupportedError as error:
    assert "one pass over shared memory" in str(error) and '"reduce-scatter + all-gather"' in str(error), error
    print("refused")
plan = comm.plan("all_reduce", 1 << 20, algorithm="reduce-scatter + all-gather")
assert len(plan.schedule()) == 2
if comm.rank == 0:
    plan.export("msccl", {path!r})
comm.barrier(timeout=30)
"""


def test_shared_memory_has_no_schedule_of_messages(run_job: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "algorithm.xml"
    assert run_job(SHARED.format(path=str(file))).count("refused") == 2
    inputs = distinct("all_reduce", 2, int(Msccl(file).algo.get("nchunksperloop", "")))
    assert Msccl(file).run(inputs, 0, 1) == promised("all_reduce", inputs)


ISLANDS = """
rank = hmc.info()["launch"]["rank"]
comm = hmc.init(devices=[("cuda:0", "cuda:1", "rocm:0", "rocm:1")[rank]])
for call in ("all_reduce", "reduce_scatter", "all_gather"):
    plan = comm.plan(call, 4 << 20)
    assert plan.algorithm.startswith("hierarchical"), plan
    if comm.rank == 0:
        plan.export("msccl", {path!r} + call)
comm.barrier(timeout=30)
print("exported")
"""


def test_hierarchical_plans_give_the_result(run_job: Callable[..., str], tmp_path: Path) -> None:
    environment = hmc.testing.environment("cuda", "rocm")
    assert run_job(ISLANDS.format(path=str(tmp_path) + "/"), ranks=4, environment=environment).count("exported") == 4
    for call in ("all_reduce", "reduce_scatter", "all_gather"):
        algorithm = Msccl(tmp_path / call)
        inputs = distinct(call, 4, int(algorithm.algo.get("nchunksperloop", "")))
        for capacity, seed in ((0, 1), (1, 2), (1 << 30, 3)):
            assert algorithm.run(inputs, capacity, seed) == promised(call, inputs), call


STAGED = """
rank = hmc.info()["launch"]["rank"]
comm = hmc.init(devices=[("mlu:0", "mlu:1", "cuda:0")[rank]])
for call, algorithm in (
    ("all_reduce", "reduce-scatter + all-gather"),
    ("all_reduce", "whole inputs to every rank"),
    ("reduce_scatter", "direct"),
):
    plan = comm.plan(call, 3 << 20, algorithm=algorithm)
    own = [step for step in plan.schedule()[0] if step.kind == "send" and step.peer == 0]
    assert own and "staged" in plan.reason, plan
    if comm.rank == 0:
        plan.export("msccl", {path!r} + call + algorithm[:5])
comm.barrier(timeout=30)
print("exported")
"""


def test_plans_that_the_cpu_reduces_give_the_result(run_job: Callable[..., str], tmp_path: Path) -> None:
    environment = hmc.testing.environment("mlu", "cuda")
    assert run_job(STAGED.format(path=str(tmp_path) + "/"), ranks=3, environment=environment).count("exported") == 3
    for call, algorithm in (("all_reduce", "reduc"), ("all_reduce", "whole"), ("reduce_scatter", "direc")):
        exported = Msccl(tmp_path / (call + algorithm))
        inputs = distinct(call, 3, int(exported.algo.get("nchunksperloop", "")))
        for capacity, seed in ((0, 1), (1, 2), (1 << 30, 3)):
            assert exported.run(inputs, capacity, seed) == promised(call, inputs), call


def test_the_command_exports(tmp_path: Path) -> None:
    file = tmp_path / "algorithm.xml"
    result = run_hmc("plan", "all_gather", "--ranks", "4", "--bytes", "4M", "--export", "msccl", str(file))
    assert result.returncode == 0, result.stderr
    assert "direct" in result.stdout
    inputs = distinct("all_gather", 4, int(Msccl(file).algo.get("nchunksperloop", "")))
    assert Msccl(file).run(inputs, 0, 1) == promised("all_gather", inputs)
    refused = run_hmc("plan", "broadcast", "--export", "msccl", str(file))
    assert refused.returncode == 2
    assert "no root" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    for wrong in (["--export", "json", "x"], ["--islands", "8xH200", "--export", "msccl", str(file)]):
        assert run_hmc("plan", *wrong).returncode == 2
