"""A trainer's weights to two ranks of a server, after every step. Run: python examples/python/weights.py"""

import multiprocessing

import numpy as np

import hmc
from hmc import weights

HIDDEN, STEPS, RANKS = 512, 3, 2


def values(step):
    """What the trainer has after a step. Real weights come from weights.from_module(model)."""
    made = np.random.default_rng(step)
    shapes = {
        "q": (HIDDEN, HIDDEN),
        "k": (HIDDEN // 4, HIDDEN),
        "v": (HIDDEN // 4, HIDDEN),
        "out": (HIDDEN, HIDDEN),
        "norm": (HIDDEN,),
    }
    return {name: made.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def train(addresses, pulled):
    with hmc.Context() as ctx:
        model = values(0)
        with weights.publish(ctx, model, epoch=0) as source:
            for _ in range(RANKS):
                addresses.put(ctx.addresses[0])
            for step in range(1, STEPS):
                for _ in range(RANKS):
                    pulled.get(timeout=60)
                with source.update(epoch=step):  # the arrays change in here only
                    for name, array in values(step).items():
                        model[name][...] = array
            for _ in range(RANKS):
                pulled.get(timeout=60)


def serve(rank, addresses, pulled):
    with hmc.Context() as ctx:
        peer = ctx.connect(addresses.get(timeout=60), timeout=30)
        source = weights.lookup(ctx, peer, timeout=30)
        # This rank's rows of q, k and v lie in one array, as engines keep them; its columns of out, in another precision.
        qkv = np.zeros((3 * HIDDEN // 2 // RANKS, HIDDEN), np.float32)
        out = np.zeros((HIDDEN, HIDDEN // RANKS), np.float16)
        norm = np.zeros(HIDDEN, np.float32)
        target = {
            **weights.fused(qkv, {"q": HIDDEN, "k": HIDDEN // 4, "v": HIDDEN // 4}, axis=0, rank=rank, size=RANKS),
            "out": weights.shard(out, axis=1, rank=rank, size=RANKS),
            "norm": norm,
        }
        with weights.plan(source, target) as plan:
            for step in range(STEPS):
                plan.pull(epoch=step, timeout=60).wait()  # until here the server uses the old weights
                assert plan.commit() == step
                check(rank, step, qkv, out, norm)
                pulled.put(rank)
        print(f"rank {rank} has the weights of {STEPS} steps")


def check(rank, step, qkv, out, norm):
    wanted = values(step)

    def rows(array):
        return np.array_split(array, RANKS)[rank]

    assert np.array_equal(qkv, np.concatenate([rows(wanted["q"]), rows(wanted["k"]), rows(wanted["v"])]))
    assert np.array_equal(out, np.array_split(wanted["out"], RANKS, axis=1)[rank].astype(np.float16))
    assert np.array_equal(norm, wanted["norm"])


if __name__ == "__main__":
    start = multiprocessing.get_context("spawn")
    addresses, pulled = start.Queue(), start.Queue()
    processes = [start.Process(target=train, args=(addresses, pulled))]
    processes += [start.Process(target=serve, args=(rank, addresses, pulled)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=90)
    assert [process.exitcode for process in processes] == [0] * (1 + RANKS)
    print("done")
