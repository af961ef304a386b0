"""A job of three ranks from a notebook or a script. Run: python examples/python/spawned.py"""

import numpy as np

import hmc


def mean_of_squares(scale):
    with hmc.init() as comm:
        mean = np.array([scale * comm.rank**2])
        comm.all_reduce(mean, op="avg", timeout=30)
        return float(mean[0])


def fail():
    raise ValueError("no such layer")


assert hmc.spawn(mean_of_squares, 3, 6.0, timeout=60) == [10.0, 10.0, 10.0]

try:
    hmc.spawn(fail, 2, timeout=60)
except hmc.RankFailedError as error:
    print(f"rank {error.rank} raised {error.__cause__!r}")
print("done")
