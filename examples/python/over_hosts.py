"""A job over one host or many: every rank sends to the next, then all exchange with all."""

import numpy as np

import hmc

with hmc.init(timeout=60) as comm:
    rank, size = comm.rank, comm.size
    after, before = (rank + 1) % size, (rank - 1) % size

    mine = np.arange(1 << 20, dtype=np.uint32) * (rank + 1)
    received = np.empty_like(mine)
    sending = comm.isend(mine, dst=after, tag=1)
    comm.recv(received, src=before, tag=1, timeout=60)
    sending.wait(timeout=60)
    assert np.array_equal(received, np.arange(1 << 20, dtype=np.uint32) * (before + 1))

    parts = np.repeat(np.arange(size, dtype=np.int64) + 100 * rank, 1000)
    gathered = np.empty_like(parts)
    comm.all_to_all(gathered, parts, timeout=60)
    assert np.array_equal(gathered, np.repeat(100 * np.arange(size) + rank, 1000))

    print(f"rank {rank} of {size}: done, to rank {after} by {comm.path(after).transport}")
    comm.barrier(timeout=60)
