"""What an all_reduce will do, and why. Run: hmc run -n 2 examples/python/explain_plan.py"""

import numpy as np

import hmc

with hmc.init() as comm:
    # No other rank takes part in this.
    for nbytes in (4 << 10, 64 << 20):
        plan = comm.plan("all_reduce", nbytes, dtype="float32")
        if comm.rank == 0:
            print(plan)
            print(f"predicted {plan.seconds / plan.lower_bound:.1f} times the lower bound; busiest link:")
            print(max(plan.links, key=lambda link: link.bytes))
    comm.barrier(timeout=30)

    # Every algorithm that can carry the call out, and what it should take.
    gradient = np.arange(1 << 16, dtype=np.float32) + comm.rank
    for name in comm.plan("all_reduce", gradient.nbytes).algorithms:
        plan = comm.plan("all_reduce", gradient.nbytes, algorithm=name)
        if comm.rank == 0:
            print(f"{plan.seconds * 1e6:8.1f} us  {plan.algorithm}")
        copy = gradient.copy()
        comm.all_reduce(copy, algorithm=name, timeout=30)  # the same name on every rank

    # Sums that are rounded once: the same bits in any order of the ranks.
    comm.all_reduce(gradient, exact=True, timeout=30)
    assert (gradient == copy).all()  # these sums need no rounding

    # One call with many values is less than many calls with few.
    layers = [np.full(1000, comm.rank + 1.0, np.float32) for _ in range(50)]
    apart = len(layers) * comm.plan("all_reduce", layers[0].nbytes).seconds
    bucket = np.concatenate(layers)
    assert comm.plan("all_reduce", bucket.nbytes).seconds < apart
    comm.all_reduce(bucket, op="avg", timeout=30)
    assert (bucket == (comm.size + 1) / 2).all()

# Ranks that need not exist: eight on links of 50 GB/s, and on links of 5.
for bandwidth in (50e9, 5e9):
    plan = hmc.plan_collective("all_reduce", 1 << 30, 8, bandwidth=bandwidth)
    assert plan.seconds >= plan.lower_bound
print("done")
