"""A model trained on two islands of unequal speed. Run: hmc run -n 2 --simulate cuda,rocm examples/python/train_two_islands.py"""

import numpy as np

import hmc
from hmc.demo.train.model import BATCH, Card, Model, batch_of, proportional_shares

DEVICES = ["cuda:0", "rocm:0"]  # of rank 0 and rank 1
SECONDS_PER_SAMPLE = [1e-3, 2.5e-3]  # of their cards, emulated: NumPy computes, then the process sleeps
STEPS = 4

with hmc.init() as comm:
    card = Card(SECONDS_PER_SAMPLE[comm.rank])
    model = Model()  # the same weights on every rank
    gradient = hmc.Memory(4 * (model.weights.size + 1), device=DEVICES[comm.rank])

    # Every rank measures its speed, and all divide the batch alike.
    speeds = np.zeros(comm.size)
    comm.all_gather(speeds, np.array([card.measure(samples=100)]), timeout=60)
    shares = proportional_shares(list(speeds))
    begin = sum(shares[: comm.rank])
    end = begin + shares[comm.rank]

    losses = []
    for step in range(STEPS):
        sums = card.gradient(model, step, begin, end)
        gradient.copy_from(sums)
        comm.all_reduce(gradient, dtype="float32", timeout=60)
        gradient.copy_to(sums)
        losses.append(model.update(sums))

    # The sum is taken in rank order, so both ranks have the same weights, bit by bit.
    digests = np.zeros(comm.size, np.int64)
    comm.all_gather(digests, np.array([model.digest()]), timeout=60)
    assert digests[0] == digests[1]

    # One process alone, with the same data: another order of the sum, so f32 rounds otherwise.
    alone = Model()
    for step, loss in enumerate(losses):
        assert abs(alone.update(alone.gradient(*batch_of(step))) - loss) < 1e-4
    if comm.rank == 0:
        print(f"shares of {BATCH} samples: {shares}; loss {losses[0]:.3f} to {losses[-1]:.3f}")
        print(comm.path(1, DEVICES[0], DEVICES[1]))
    comm.barrier(timeout=60)
print("done")
