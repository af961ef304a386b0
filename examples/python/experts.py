"""A layer of experts on three ranks, of which one dies. Run: python examples/python/experts.py"""

import multiprocessing
import os
import signal
import tempfile

import numpy as np

import hmc
import hmc.experts

RANKS, EXPERTS, HIDDEN, TOKENS, TOPK = 3, 12, 256, 32, 4


def expert(number, x):
    """Stands for the network of an expert."""
    return np.tanh(x * (number + 1))


def layer(ep, x, topk_ids, topk_weights):
    x2, handle = ep.dispatch(x, topk_ids, topk_weights, timeout=30)
    results = ep.results(handle)  # combine() does not copy this array
    for local, number in enumerate(ep.experts_of(ep.rank)):
        rows = handle.rows(local)
        results[rows] = expert(number, x2[rows])
    return ep.combine(results, handle, timeout=30), handle


def dense(x, topk_ids, topk_weights, missing):
    """The same on one rank, without the results that are missing."""
    y = np.zeros_like(x)
    for token, k in zip(*np.nonzero(~missing), strict=True):
        y[token] += topk_weights[token, k] * expert(topk_ids[token, k], x[token])
    return y


def work(rank, rendezvous):
    with hmc.init(rank, RANKS, rendezvous, timeout=30) as comm:
        ep = hmc.experts.Buffer(comm, EXPERTS, HIDDEN, TOKENS, topk=TOPK, dtype="float32")
        random = np.random.default_rng(rank)
        for step in range(10):
            if (rank, step) == (1, 5):
                os.kill(os.getpid(), signal.SIGKILL)  # the accident
            x = random.standard_normal((TOKENS, HIDDEN), np.float32)
            topk_ids = np.argsort(random.random((TOKENS, EXPERTS)), axis=1)[:, :TOPK]
            topk_weights = random.random((TOKENS, TOPK), np.float32)
            y, handle = layer(ep, x, topk_ids, topk_weights)
            assert np.allclose(y, dense(x, topk_ids, topk_weights, handle.lost), atol=1e-5)
        print(f"rank {rank}: alive {ep.alive}; {handle.lost.sum()} of {topk_ids.size} results are missing in the last step")
        ep.close(timeout=30)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start = multiprocessing.get_context("spawn").Process
        processes = [start(target=work, args=(rank, f"unix:{folder}/rendezvous")) for rank in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL, 0]
    print("done")
