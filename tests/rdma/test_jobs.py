"""Whole jobs over verbs: processes on two devices, every byte compared; and their bad days."""

from __future__ import annotations

from collections.abc import Callable

import pytest

SIZES = [0, 1, 7, 220, 221, 4088, 4089, 4097, 65537, (1 << 20) + 3, (9 << 20) + 1]

MESSAGES = f"""
with hmc.init() as comm:
    other = 1 - comm.rank
    print(comm.path(other))
    for tag, size in enumerate({SIZES}):
        out = np.full(size + 64, 0xA5, np.uint8)
        work = comm.irecv(out[32 : 32 + size], src=other, tag=tag)
        comm.send(pattern(size, 10 * tag + comm.rank), dst=other, tag=tag, timeout=60)
        work.wait(timeout=60)
        assert np.array_equal(out[32 : 32 + size], pattern(size, 10 * tag + other)), size
        assert (out[:32] == 0xA5).all() and (out[32 + size :] == 0xA5).all()
    comm.barrier(timeout=60)
"""

PUTS = f"""
with hmc.init() as comm:
    other = 1 - comm.rank
    room = 10 << 20
    target, source = comm.buffer(room), comm.register(np.zeros(room, np.uint8))
    remote = comm.exchange(target, timeout=60)[other]
    for seed, size in enumerate({SIZES}):
        target.numpy()[:] = 0x5A
        source.numpy()[100 : 100 + size] = pattern(size, 10 * seed + comm.rank)
        comm.barrier(timeout=60)
        comm.put(source[100 : 100 + size], remote[33 : 33 + size], notify=seed).wait(timeout=60)
        comm.wait_notify(other, seed, timeout=60)
        view = target.numpy()
        assert np.array_equal(view[33 : 33 + size], pattern(size, 10 * seed + other)), size
        assert (view[:33] == 0x5A).all() and (view[33 + size : 33 + size + 4096] == 0x5A).all()
        back = comm.buffer(size)
        comm.get(back, remote[33 : 33 + size]).wait(timeout=60)
        assert np.array_equal(back.numpy(), pattern(size, 10 * seed + comm.rank)), size
        comm.barrier(timeout=60)
    counters = comm.context.counters()
    assert counters["bytes_staged"] == 0, counters
"""

BLOCKS = """
with hmc.init() as comm:
    count, block = 700, 4096 + 8
    target, source = comm.buffer(2 * count * block), comm.buffer(2 * count * block)
    remote = comm.exchange(target, timeout=60)[1 - comm.rank]
    order = np.random.default_rng(5)
    here, there = (order.permutation(2 * count)[:count] * block for _ in range(2))
    source.numpy()[:] = pattern(source.nbytes, comm.rank)
    target.numpy()[:] = pattern(target.nbytes, 10 + comm.rank)
    comm.barrier(timeout=60)
    batch = comm.prepare_blocks([(source, here, remote, there)], block=block)
    comm.put_blocks(batch, notify=1).wait(timeout=60)
    comm.wait_notify(1 - comm.rank, 1, timeout=60)
    expected, sent = pattern(target.nbytes, 10 + comm.rank), pattern(source.nbytes, 1 - comm.rank)
    for s, t in zip(here, there):
        expected[t : t + block] = sent[s : s + block]
    assert np.array_equal(target.numpy(), expected)
    comm.barrier(timeout=60)
"""

ALL_TO_ALL = """
with hmc.init() as comm:
    for scale in (1, 1000, 200_000):
        counts = [[(s * 3 + d * 5) % 4 * scale for d in range(comm.size)] for s in range(comm.size)]
        mine = counts[comm.rank]
        theirs = [row[comm.rank] for row in counts]
        inp = np.concatenate([pattern(n, 100 * comm.rank + d) for d, n in enumerate(mine)])
        out = np.empty(sum(theirs), np.uint8)
        comm.all_to_all_v(out, theirs, inp, mine, timeout=60)
        assert np.array_equal(out, np.concatenate([pattern(n, 100 * s + comm.rank) for s, n in enumerate(theirs)]))
    comm.barrier(timeout=60)
"""

# Rank 0 puts to rank 1 and reads back, until it is told otherwise.
PUTTING = """
comm = hmc.init()
target = comm.buffer(4 << 20)
remote = comm.exchange(target, timeout=60)[1 - comm.rank]
source, back = comm.buffer(4 << 20), comm.buffer(4 << 20)
comm.barrier(timeout=60)
start = time.monotonic()

def put_and_compare(seed):
    source.numpy()[:] = pattern(source.nbytes, seed)
    comm.put(source, remote).wait(timeout=60)
    comm.get(back, remote).wait(timeout=60)
    assert np.array_equal(back.numpy(), source.numpy()), seed

def put_until_lost():
    try:
        while time.monotonic() - start < 60:
            put_and_compare(0)
    except hmc.PeerLostError as error:
        print(f"lost after {time.monotonic() - start:.1f} s: {error}", flush=True)
        os._exit(0)
    raise AssertionError("60 seconds have passed")
"""


@pytest.mark.timeout(150)
def test_messages(run_verbs_job: Callable[..., str]) -> None:
    assert "verbs (rxe" in run_verbs_job(MESSAGES)


@pytest.mark.timeout(150)
def test_puts_and_gets(run_verbs_job: Callable[..., str]) -> None:
    run_verbs_job(PUTS)


@pytest.mark.timeout(150)
def test_blocks(run_verbs_job: Callable[..., str]) -> None:
    run_verbs_job(BLOCKS)


@pytest.mark.timeout(150)
def test_all_to_all(run_verbs_job: Callable[..., str]) -> None:
    run_verbs_job(ALL_TO_ALL, ranks=4)


LOSSY = "for end in 0 1; do tc qdisc add dev cable$end root netem loss 2% delay 1ms || exit 1; done"
CUT = "for end in 0 1; do tc qdisc replace dev cable$end root netem loss 100%; done"
MEND = "for end in 0 1; do tc qdisc del dev cable$end root; done 2>/dev/null; true"


@pytest.mark.timeout(200)
def test_a_lossy_and_slow_cable(run_verbs_job: Callable[..., str], run_in_guest: Callable[..., str]) -> None:
    try:
        run_verbs_job(MESSAGES.replace("(9 << 20)", "(2 << 20)"), before=LOSSY, timeout=150, HMC_VERBS_TIMEOUT="14")
    finally:
        run_in_guest(MEND)


@pytest.mark.timeout(150)
def test_a_cable_cut_for_two_seconds(run_verbs_job: Callable[..., str], run_in_guest: Callable[..., str]) -> None:
    job = f"""
import threading
if comm.rank == 0:
    for seed in range(6):
        if seed == 2:
            threading.Thread(target=os.system, args=({CUT + "; sleep 2; " + MEND!r},)).start()
        put_and_compare(seed)
    assert time.monotonic() - start > 2
comm.barrier(timeout=60)
"""
    try:
        run_verbs_job(PUTTING + job)
    finally:
        run_in_guest(MEND)


@pytest.mark.timeout(150)
def test_a_cable_cut_for_good(run_verbs_job: Callable[..., str], run_in_guest: Callable[..., str]) -> None:
    job = f"""
if comm.rank == 0:
    put_and_compare(1)
    os.system({CUT!r})
    put_until_lost()
try:
    comm.recv(back, src=0, timeout=60)
except hmc.PeerLostError:
    os._exit(0)
"""
    try:
        out = run_verbs_job(PUTTING + job, HMC_VERBS_TIMEOUT="14", HMC_VERBS_RETRIES="3")
    finally:
        run_in_guest(MEND)
    assert "does not answer any more" in out


@pytest.mark.timeout(150)
def test_a_peer_killed_while_it_is_written_to(run_verbs_job: Callable[..., str]) -> None:
    job = """
if comm.rank == 1:
    time.sleep(2)
    os.kill(os.getpid(), 9)
put_until_lost()
"""
    assert "lost after" in run_verbs_job(PUTTING + job, status=137)
