"""Device memory of two vendors. Without them: hmc run -n 2 --simulate cuda,rocm examples/python/mixed_vendors.py"""

import numpy as np

import hmc

DEVICES = ["cuda:0", "rocm:0"]  # of rank 0 and rank 1
SIZE = 3_000_001

with hmc.init() as comm:
    peer = 1 - comm.rank
    data = [np.random.default_rng(rank).integers(0, 256, SIZE, dtype=np.uint8) for rank in range(2)]

    # Peers read and write device memory as they do the CPU's; only the CPU itself must copy to look at it.
    buf = comm.buffer(2 * SIZE, device=DEVICES[comm.rank])
    buf.memory[:SIZE].copy_from(data[comm.rank])
    remote = comm.exchange(buf, timeout=30)[peer]
    comm.put(buf[:SIZE], remote[SIZE:], notify=1).wait(timeout=30)
    comm.wait_notify(peer, 1, timeout=30)
    got = np.empty(SIZE, np.uint8)
    buf.memory[SIZE:].copy_to(got)
    assert np.array_equal(got, data[peer])

    # Messages between the CPU's memory here and a device there are no different.
    memory = hmc.Memory(SIZE, device=DEVICES[comm.rank])
    receiving = comm.irecv(memory, src=peer)
    comm.send(data[comm.rank], dst=peer, timeout=30)
    receiving.wait(timeout=30)
    memory.copy_to(got)
    assert np.array_equal(got, data[peer])

    print(comm.path(peer, DEVICES[comm.rank], DEVICES[peer]))
    comm.barrier(timeout=30)
print("done")
