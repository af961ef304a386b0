"""Pages of a cache by index: two processes, a registered tensor on each side, scattered pages put by layer and page number."""

import numpy as np

import hmc
from hmc import tensors

LAYERS, PAGES, PAGE = 4, 32, (2, 16, 64)  # a page: K and V, 16 tokens, 64 numbers each

with hmc.init() as comm:
    cache = np.full((LAYERS, PAGES, *PAGE), comm.rank, np.float32)
    cache += np.arange(PAGES, dtype=np.float32).reshape(1, PAGES, 1, 1, 1) / 100
    local = tensors.register(comm, cache)
    remotes = [tensors.view(remote, local.dtype, local.shape) for remote in comm.exchange(local.buffer, timeout=30)]

    if comm.rank == 0:
        batch = comm.prepare_blocks(*tensors.pairs(local[2, [5, 9, 30]], remotes[1][2, [0, 7, 1]]))
        comm.put_blocks(batch, notify=1).wait(timeout=30)
    if comm.rank == 1:
        comm.wait_notify(src=0, id=1, timeout=30)
        assert np.allclose(cache[2, [0, 7, 1], 0, 0, 0], [0.05, 0.09, 0.30])
    comm.barrier(timeout=30)
    print("done")
