"""batch() from Python: a block of collectives as one, messages and Works among them, and how blocks end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

BLOCKS = """
import gc
comm = hmc.init()
me, n = comm.rank, comm.size

def given(rank, call, count):
    return np.random.default_rng([rank, call]).integers(-99, 99, count).astype("i8")

def total(call, count):
    return sum(given(rank, call, count) for rank in range(n))

for door in (comm, comm.local[0]):
    arrays = [given(me, call, call * 37) for call in range(40)]
    mine = given(me, 50, 33)
    gathered, scattered, news = np.zeros((n, 33), "i8"), np.zeros(33, "i8"), given(7, 7, 11) if me == n - 1 else np.zeros(11, "i8")
    root = np.zeros(33, "i8") if me == 0 else None
    with door.batch(timeout=30) as batch:
        for array in arrays:
            door.all_reduce(array)
        assert np.array_equal(arrays[3], given(me, 3, 111)), "before the end of the block"
        door.all_gather(gathered, mine)
        door.reduce_scatter(scattered, np.concatenate([given(me, 51, 33)] * n))
        door.broadcast(news, root=n - 1)
        door.reduce(root, mine, root=0)
        door.barrier()
        assert len(batch) == 45
    for call, array in enumerate(arrays):
        assert np.array_equal(array, total(call, call * 37)), call
    assert all(np.array_equal(gathered[r], given(r, 50, 33)) for r in range(n))
    assert np.array_equal(scattered, total(51, 33))
    assert np.array_equal(news, given(7, 7, 11))
    assert me != 0 or np.array_equal(root, total(50, 33))

# A Work for all; the batch keeps arrays that nobody else does.
kept = given(me, 1, 1000)
with comm.batch() as batch:
    comm.all_reduce(kept)
    comm.all_reduce(np.concatenate([given(me, 2, 5000)]))
    out = np.zeros(1000, "i8")
    comm.irecv(out, (me - 1) % n, 5)
    comm.isend(given(me, 3, 1000), (me + 1) % n, 5)
    gc.collect()
    work = batch.start()
work.wait(30)
assert np.array_equal(kept, total(1, 1000)) and np.array_equal(out, given((me - 1) % n, 3, 1000))

# An exception discards the block.
array = given(me, 4, 100)
try:
    with comm.batch():
        comm.all_reduce(array)
        raise KeyError("mine")
except KeyError:
    pass
assert np.array_equal(array, given(me, 4, 100))
comm.all_reduce(array)
assert np.array_equal(array, total(4, 100))
with comm.batch():
    pass

def refused(call, word):
    try:
        call()
    except hmc.InvalidArgumentError as error:
        assert word in str(error), error
    else:
        raise SystemExit("accepted " + word)

used = comm.batch()
with used:
    refused(lambda: comm.batch().__enter__(), "nest")
    refused(lambda: comm.iall_reduce(array), "call all_reduce")
    refused(lambda: comm.recv(array, 0), "call irecv")
    refused(lambda: comm.exchange_bytes(b"1"), "end the batch")
    comm.all_reduce(array)
    refused(lambda: comm.all_reduce(array), "overlaps")
refused(lambda: used.__enter__(), "once")
refused(lambda: used.start(), "started")
comm.barrier(timeout=30)
print("blocks")
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_blocks(run_job: Callable[..., str], ranks: int) -> None:
    assert run_job(BLOCKS, ranks=ranks).count("blocks") == ranks


KILLED = """
import os, signal
comm = hmc.init()
comm.barrier(timeout=30)
if comm.rank == 1:
    for rank in (0, 2):  # its death would end a barrier that they have not returned from
        comm.recv(np.zeros(1), rank, timeout=30)
    os.kill(os.getpid(), signal.SIGKILL)
comm.send(np.zeros(1), 1, timeout=30)
arrays = [np.ones(1000 + call) for call in range(30)]
try:
    with comm.batch(timeout=20):
        for array in arrays:
            comm.all_reduce(array)
except hmc.PeerLostError as error:
    assert "rank 1" in str(error), error
    print("lost", flush=True)
"""


def test_a_killed_rank_ends_the_block(run_job: Callable[..., str]) -> None:
    assert run_job(KILLED, ranks=3, expect=137).count("lost") >= 1


LATE = """
import time
comm = hmc.init()
if comm.rank == 0:
    array = np.ones(10)
    started = time.monotonic()
    try:
        with comm.batch(timeout=0.3):
            comm.all_reduce(array)
    except hmc.HmcTimeoutError as error:
        assert "rank 1" in str(error) and time.monotonic() - started < 30, error
        print("late", flush=True)
    comm.send(np.zeros(1), 1, timeout=30)
else:
    comm.recv(np.zeros(1), 0, timeout=40)
"""


def test_a_late_rank_is_named(run_job: Callable[..., str]) -> None:
    assert run_job(LATE).count("late") == 1


ENDS = """
import threading
comm = hmc.init()
me, n = comm.rank, comm.size

# A timeout that is none is refused before anything is collected.
for bad in (-1, float("nan")):
    array = np.arange(5.0) + me
    try:
        with comm.batch(timeout=bad):
            comm.all_reduce(array)
    except hmc.InvalidArgumentError as error:
        assert "timeout" in str(error), error
    else:
        raise SystemExit("accepted")
    comm.all_reduce(array, timeout=30)
    assert np.array_equal(array, n * np.arange(5.0) + n * (n - 1) / 2), "collected by a batch that has ended"

# Another thread ends the block amid this thread's calls. A group of one: what is collected may differ among ranks.
with comm.split(me) as alone:
    for _ in range(200):
        batch = alone.batch()
        batch.__enter__()
        ending = threading.Thread(target=batch.__exit__, args=(None, None, None))
        ending.start()
        for _ in range(100):
            alone.all_reduce(np.arange(3.0))
        ending.join()
        assert len(batch) == 0
        with alone.batch():  # none is left open
            alone.all_reduce(array)
        comm.barrier(timeout=30)

# Factors that differ in their sign alone are not one pack.
inputs = np.arange(1.0, 6.0)
zero, minus = inputs.copy(), inputs.copy()
with comm.batch(timeout=30):
    comm.all_reduce(zero, op="premul_sum", factor=0.0)
    comm.all_reduce(minus, op="premul_sum", factor=-0.0)
assert not np.signbit(zero).any() and np.signbit(minus).all(), (zero, minus)

# A message that does not come is cancelled, and the Communicator goes on.
array, got = np.arange(7.0) * (me + 1), np.zeros(4)
try:
    with comm.batch(timeout=10):  # enough for the other rank to come
        comm.all_reduce(array)
        work = comm.irecv(got, (me + 1) % n, 77)
except hmc.HmcTimeoutError as error:
    assert "its messages were cancelled" in str(error), error
else:
    raise SystemExit("a message came")
assert work.done and np.array_equal(array, np.arange(7.0) * (n * (n + 1) // 2))
comm.barrier(timeout=30)
print("ended")
"""


@pytest.mark.parametrize("transports", [None, "tcp"])
def test_how_blocks_end(run_job: Callable[..., str], transports: str | None) -> None:
    environment = {"HMC_TRANSPORTS": transports} if transports else {}
    assert run_job(ENDS, environment=environment).count("ended") == 2


OVERLAPS = """
comm = hmc.init(0, 1)
rng = np.random.default_rng(7)

def meet(a, b):
    return max(a[0], b[0]) < min(a[1], b[1])

def span():
    start = int(rng.integers(0, 3000))
    return start, start + int(rng.integers(0, 40))

memory = rng.integers(0, 255, 3100).astype("u1")
refused = 0
for _ in range(30):
    taken = []
    before = memory.copy()
    with comm.batch():
        for _ in range(100):
            out, inp = span(), span()
            inp = inp[0], inp[0] + out[1] - out[0]
            if meet(out, inp):
                inp = out  # in place
            wrong = any(meet(out, old) or meet(out, read) or meet(inp, old) for old, read in taken)
            try:
                comm.all_reduce(memory[slice(*out)], memory[slice(*inp)])
            except hmc.InvalidArgumentError as error:
                assert wrong and "overlaps one of call" in str(error), (error, out, inp, taken)
                refused += 1
            else:
                assert not wrong, (out, inp, taken)
                taken.append((out, inp))
    for out, inp in taken:
        before[slice(*out)] = before[slice(*inp)]
    assert np.array_equal(memory, before)
assert 300 < refused < 2900, refused
print("compared")
"""


def test_overlaps_are_refused_and_nothing_else_is(run_job: Callable[..., str]) -> None:
    assert run_job(OVERLAPS, ranks=1).count("compared") == 1
