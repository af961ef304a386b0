"""Gradients of all ranks added up, and other collectives. Run: hmc run -n 4 examples/python/all_reduce.py"""

import numpy as np

import hmc

with hmc.init() as comm:
    # In place: every rank ends with the mean, and with the same bits.
    gradient = np.linspace(0, 1, 1000, dtype=np.float32) * (comm.rank + 1)
    comm.all_reduce(gradient, op="avg", timeout=30)
    assert np.allclose(gradient, np.linspace(0, 1, 1000) * (comm.size + 1) / 2)

    # Sharded: each rank keeps the sum of its part, works on it, and gives it back to all.
    gradients = np.ones(1000 * comm.size, dtype=np.float32)
    shard = np.empty(1000, dtype=np.float32)
    comm.reduce_scatter(shard, gradients, timeout=30)
    shard *= 0.5
    comm.all_gather(gradients, shard, timeout=30)
    assert (gradients == comm.size / 2).all()

    # From one rank to all, and from all to one.
    settings = np.array([3, 1, 4]) if comm.rank == 0 else np.empty(3, dtype=np.int64)
    comm.broadcast(settings, root=0, timeout=30)
    losses = np.empty(comm.size) if comm.rank == 0 else None
    comm.gather(losses, np.array([0.25 * comm.rank]), root=0, timeout=30)
    if comm.rank == 0:
        print("losses:", losses, "settings:", settings)

    # Several at once: small ones take one exchange.
    layers = [np.full(100, comm.rank + layer, dtype=np.float32) for layer in range(10)]
    with comm.batch(timeout=30):
        for layer in layers:
            comm.all_reduce(layer)
    assert (layers[3] == comm.size * (comm.size - 1) / 2 + 3 * comm.size).all()

    # In the background, while something else is computed.
    work = comm.iall_reduce(gradients, op="max")
    work.wait(30)
print("done")
