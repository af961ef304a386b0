"""Collectives that the vendor's library carries out. gloo stands for the library and the CPU for its card: its Works, coalescing
and abort have the shape of NCCL's. What gloo carried out is told from what HMC did by counting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PRELUDE = """
from datetime import timedelta
from hmc.torch import _native

taken = []
CARD = {card}

class Counted(dist.ProcessGroupGloo):
    def abort(self):
        taken.append("abort")
        super().abort()

def counted(name):
    own = getattr(dist.ProcessGroupGloo, name)
    def call(self, *arguments):
        taken.append(name)
        return own(self, *arguments)
    return call

# Not as attributes of the object, which would refer to itself: only its end waits for gloo's threads, and one that frees a tensor
# while the interpreter ends aborts the process.
for name in {{*_delegation._COLLECTIVES, *_delegation._COLLECTIVES.values()}} & set(dir(dist.ProcessGroupGloo)):
    setattr(Counted, name, counted(name))

def made(store, rank, size, timeout):
    device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    options = dist.ProcessGroupGloo._Options()
    options._devices, options._timeout = [device], timeout
    return Counted(store, rank, size, options)

_native.library = lambda: _native.Library("cpu", NAME, lambda device: str(CARD), made)
"""
IMPORTS = "import hmc.torch\nfrom hmc.torch import _delegation"


def prelude(card: str = "os.environ['RANK']", name: str = "'stand-in 1'") -> str:
    return PRELUDE.format(card=card).replace("NAME", name)


ALL_CALLS = """
rank, size = start()
x = torch.arange(12.0) * (rank + 1)
total = torch.arange(12.0) * sum(range(1, size + 1))
dist.all_reduce(x)
assert torch.equal(x, total), x
x = torch.arange(12.0) + rank
dist.broadcast(x, 1)
assert torch.equal(x, torch.arange(12.0) + 1)
dist.reduce(x, 0)
assert rank != 0 or torch.equal(x, (torch.arange(12.0) + 1) * size)
own, every = torch.arange(3.0) + 10 * rank, [torch.empty(3) for _ in range(size)]
dist.all_gather(every, own)
assert all(torch.equal(part, torch.arange(3.0) + 10 * r) for r, part in enumerate(every))
flat = torch.empty(3 * size)
dist.all_gather_into_tensor(flat, own)
assert torch.equal(flat, torch.cat(every))
dist.gather(own, every if rank == 0 else None, 0)
dist.scatter(own, every if rank == 1 else None, 1)
assert torch.equal(own, torch.arange(3.0) + 10 * rank)
part = torch.empty(3)
dist.reduce_scatter_tensor(part, flat)
assert torch.equal(part, flat.view(size, 3)[rank] * size)
swapped = torch.empty(2 * size)
dist.all_to_all_single(swapped, torch.arange(2.0 * size) + 100 * rank)
assert torch.equal(swapped, torch.cat([torch.arange(2.0) + 2 * rank + 100 * r for r in range(size)]))
work = dist.all_reduce(part, async_op=True)
work.wait()
work = dist.all_reduce(part, async_op=True)
work.get_future().wait()
dist.barrier()
dist.send(own, 1) if rank == 0 else dist.recv(own, 0) if rank == 1 else None
dist.destroy_process_group()
"""


def test_every_collective_is_the_librarys_and_messages_are_not(run_torch: Callable[..., list[str]]) -> None:
    said = run_torch(prelude() + ALL_CALLS + "print(sorted(set(taken)))", ranks=3, imports=IMPORTS)
    for text in said:
        for name in ("allreduce", "broadcast", "reduce", "allgather", "gather", "scatter"):
            assert f"'{name}'" in text
        for either in (("_allgather_base", "all_gather_single"), ("_reduce_scatter_base", "reduce_scatter_single")):
            assert any(f"'{name}'" in text for name in either)
        assert "'send'" not in text


@pytest.mark.parametrize(
    ("card", "name"),
    [("0", "'stand-in 1'"), ("os.environ['RANK']", "'stand-in ' + os.environ['RANK']")],
    ids=["two ranks on one card", "other versions"],
)
def test_hmc_carries_out_what_the_library_cannot(run_torch: Callable[..., list[str]], card: str, name: str) -> None:
    said = run_torch(prelude(card, name) + ALL_CALLS + "print('taken', taken)", ranks=3, imports=IMPORTS)
    assert all("taken []" in text for text in said)


def test_a_group_without_a_library_at_one_rank(run_torch: Callable[..., list[str]]) -> None:
    source = prelude() + "if os.environ['RANK'] == '1': _native.library = lambda: None\n" + ALL_CALLS + "print('taken', taken)"
    assert all("taken []" in text for text in run_torch(source, ranks=3, imports=IMPORTS))


def test_a_library_that_fails_at_one_rank(run_torch: Callable[..., list[str]]) -> None:
    source = """
class Made:
    def abort(self):
        taken.append("abort")

def fails_at_1(store, rank, size, timeout):
    if rank == 1:
        raise RuntimeError("no room for channels, and more words than a rank says")
    return Made()

_native.library = lambda: _native.Library("cpu", "stand-in 1", lambda device: os.environ["RANK"], fails_at_1)
"""
    said = run_torch(prelude() + source + ALL_CALLS + "print('taken', taken)", ranks=3, imports=IMPORTS)
    assert ["taken ['abort']" in text for text in said] == [True, False, True]
    for text in said:
        assert text.count("stand-in 1 made no group (rank 1: RuntimeError: no room for channels") == 1


def test_each_group_has_its_own(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        prelude()
        + """
rank, size = start()
pair, other = dist.new_group([0, 2]), dist.new_group([1, 2])
for round in range(20):
    x = torch.full((5,), float(rank))
    dist.all_reduce(x)
    assert x[0] == 3
    if rank != 1:
        x = torch.full((5,), float(rank))
        dist.all_reduce(x, group=pair)
        assert x[4] == 2
    if rank != 0:
        x = torch.full((5,), float(rank))
        dist.all_reduce(x, group=other)
        assert x[4] == 3
assert len(taken) == (40 if rank != 2 else 60), len(taken)
dist.destroy_process_group()
""",
        ranks=3,
        imports=IMPORTS,
    )


KILLED = """
import signal, time
rank, size = start(timeout=timedelta(seconds=60))
x = torch.ones(1000)
dist.all_reduce(x)
store = dist.distributed_c10d._get_default_store()
store.add("past the first call", 1)
if rank == 1:
    while store.add("past the first call", 0) < size:  # its death would end the call of one that is still in it
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    dist.all_reduce(x)  # waits in the library
except Exception:
    pass
else:
    raise SystemExit("it came back")
assert time.monotonic() - began < 30, time.monotonic() - began
while True:
    assert time.monotonic() - began < 30, "no PeerLostError"
    try:
        dist.all_reduce(x)
    except hmc.PeerLostError as error:
        assert "rank 1" in str(error), error
        break
    except Exception:
        time.sleep(0.01)
    else:
        raise SystemExit("it came back")
while "abort" not in taken:
    assert time.monotonic() - began < 30, taken
    time.sleep(0.001)
print("lost", flush=True)
os._exit(0)
"""


def test_a_killed_rank_ends_what_waits_in_the_library(run_torch: Callable[..., list[str]]) -> None:
    said = run_torch(prelude() + KILLED, ranks=3, expect={1: -9}, imports=IMPORTS)
    assert ["lost" in text for text in said] == [True, False, True]


ABORTED = """
import threading, time
# The library waits until its own abort, whatever another rank does.
class Waits(Counted):
    ended = threading.Event()
    def allreduce(self, *arguments):
        assert self.ended.wait(60)
        raise RuntimeError("aborted")
    def abort(self):
        taken.append("abort")
        self.ended.set()

Counted = Waits
rank, size = start(timeout=timedelta(seconds=60))
x = torch.ones(7)
dist.broadcast(x, 0)
backend, store = dist.group.WORLD._native.of([x]), dist.distributed_c10d._get_default_store()
began = time.monotonic()
store.add("have their backend", 1)
if rank == 0:
    while store.add("have their backend", 0) < size:
        time.sleep(0.01)
    time.sleep(0.5)
    dist.group.WORLD.abort()
else:
    try:
        backend.allreduce([x])
    except RuntimeError as error:
        assert "aborted" in str(error), error
    assert time.monotonic() - began < 50  # of the 60 of allreduce(); rank 0 may be late
    try:
        dist.all_reduce(x)
    except hmc.HmcCancelledError as error:
        assert "rank 0 aborted" in str(error), error
        print("told", flush=True)
assert taken.count("abort") == 1, taken
os._exit(0)
"""


def test_an_abort_ends_what_waits_in_the_library(run_torch: Callable[..., list[str]]) -> None:
    said = run_torch(prelude() + ABORTED, ranks=3, imports=IMPORTS)
    assert ["told" in text for text in said] == [False, True, True]


def test_ddp_trains_over_the_library(run_torch: Callable[..., list[str]]) -> None:
    said = run_torch(
        prelude()
        + """
from torch.nn.parallel import DistributedDataParallel
rank, size = start()
torch.manual_seed(5)
model = DistributedDataParallel(torch.nn.Linear(64, 8))
for step in range(5):
    loss = model(torch.randn(4, 64, generator=torch.Generator().manual_seed(step * size + rank))).square().sum()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
print("sum", [float(p.double().sum()) for p in model.parameters()], "allreduce" in taken)
dist.destroy_process_group()
""",
        imports=IMPORTS,
    )
    lines = [next(line for line in text.splitlines() if line.startswith("sum")) for text in said]
    assert lines[0] == lines[1]
    assert lines[0].endswith("True")


def test_a_coalesced_block_is_the_librarys_or_hmcs(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        prelude()
        + """
rank, size = start()
group = dist.group.WORLD
token = torch.full((4,), float(rank))
got = torch.empty(4)
ops = [dist.P2POp(dist.isend, token, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
assert torch.equal(got, torch.full((4,), 1.0 - rank))
assert not taken
dist.all_reduce(token)
assert taken == ["allreduce"]
dist.destroy_process_group()
""",
        imports=IMPORTS,
    )


def test_a_block_that_an_exception_ended_holds_nothing_back(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        prelude()
        + """
rank, size = start()
group, cpu = dist.group.WORLD, torch.device("cpu")
dist.all_reduce(torch.ones(1))
Counted._start_coalescing = lambda self: taken.append("start")
Counted._end_coalescing = lambda self: taken.append("end")
group._start_coalescing(cpu)
group.allreduce([torch.ones(3)]).wait()
assert taken == ["allreduce", "start", "allreduce"], taken
# An exception; then a block of messages alone.
got = torch.empty(4)
group._start_coalescing(cpu)
assert taken[3:] == ["end"], taken
group.send([torch.full((4,), float(rank))], 1 - rank, 0)
group.recv([got], 1 - rank, 0)
group._end_coalescing(cpu).wait()
assert torch.equal(got, torch.full((4,), 1.0 - rank))
assert taken[3:] == ["end"], taken
dist.destroy_process_group()
""",
        imports=IMPORTS,
    )


def test_a_timeout_beyond_all_clocks_leaves_the_library(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        prelude()
        + """
rank, size = start()
group = dist.group.WORLD
for _ in range(2):  # before the library's group is made, and after
    group.set_timeout(timedelta.max)
    dist.all_reduce(x := torch.ones(3))
    assert x.tolist() == [size] * 3
assert taken == ["allreduce"] * 2, taken
dist.destroy_process_group()
""",
        imports=IMPORTS,
    )
