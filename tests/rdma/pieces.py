"""Pieces of jobs for the guest, as source: a script is some of these and what the test does with them."""

SIZES = [0, 1, 7, 220, 221, 4088, 4089, 4097, 65537, (1 << 20) + 3, (5 << 20) + 1]

# Every piece is called with a Communicator of two ranks.
MESSAGES = """
def messages(comm, sizes):
    other = 1 - comm.rank
    for tag, size in enumerate(sizes):
        out = np.full(size + 64, 0xA5, np.uint8)
        work = comm.irecv(out[32 : 32 + size], src=other, tag=tag)
        comm.send(pattern(size, 10 * tag + comm.rank), dst=other, tag=tag, timeout=60)
        work.wait(timeout=60)
        assert np.array_equal(out[32 : 32 + size], pattern(size, 10 * tag + other)), size
        assert (out[:32] == 0xA5).all() and (out[32 + size :] == 0xA5).all()
    comm.barrier(timeout=60)
"""

PUTS = """
def puts(comm, sizes):
    other = 1 - comm.rank
    room = max(sizes) + 8192
    target, source = comm.buffer(room), comm.register(np.zeros(room, np.uint8))
    remote = comm.exchange(target, timeout=60)[other]
    for seed, size in enumerate(sizes):
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
def blocks(comm, count, block):
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
    for scale in (1, 1000, 50_000):
        counts = [[(s * 3 + d * 5) % 4 * scale for d in range(comm.size)] for s in range(comm.size)]
        mine = counts[comm.rank]
        theirs = [row[comm.rank] for row in counts]
        inp = np.concatenate([pattern(n, 100 * comm.rank + d) for d, n in enumerate(mine)])
        out = np.empty(sum(theirs), np.uint8)
        comm.all_to_all_v(out, theirs, inp, mine, timeout=60)
        assert np.array_equal(out, np.concatenate([pattern(n, 100 * s + comm.rank) for s, n in enumerate(theirs)]))
    comm.barrier(timeout=60)
"""

# Rank 1 closes buffers that rank 0 uses, a little later each time.
CLOSED_IN_USE = """
def closed_in_use(comm, turns):
    here = comm.buffer(3 << 20)
    for turn in range(turns):
        target = comm.buffer(3 << 20)
        remote = comm.exchange(target, timeout=60)[1 - comm.rank]
        comm.barrier(timeout=60)
        if comm.rank == 1:
            time.sleep(0.04 * turn)
            held = target.memory
            target.close(timeout=60)
            held.numpy()[:] = 0x5A
            comm.barrier(timeout=60)
            assert (held.numpy() == 0x5A).all(), "written after it was closed"
            continue
        done = 0
        try:
            while True:
                works = [(comm.get if (turn + i) % 3 else comm.put)(here[i : 2 << 20], remote[i : 2 << 20]) for i in range(3)]
                for work in works:
                    work.wait(timeout=60)
                    done += 1
        except hmc.StaleBufferError as error:
            assert "closed" in str(error), error
        print("turn", turn, "done", done)
        comm.barrier(timeout=60)
"""

# Rank 0 puts to rank 1 and reads back, until it is told otherwise.
PUTTING = """
comm = hmc.init()
target = comm.buffer(2 << 20)
remote = comm.exchange(target, timeout=60)[1 - comm.rank]
source, back = comm.buffer(2 << 20), comm.buffer(2 << 20)
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
            try:
                put_and_compare(0)
            except hmc.TransportError as error:  # the connection's end; then it is tried again
                assert "moved" in str(error), error
    except hmc.PeerLostError as error:
        print(f"lost after {time.monotonic() - start:.1f} s: {error}", flush=True)
        os._exit(0)
    raise AssertionError("60 seconds have passed")
"""
