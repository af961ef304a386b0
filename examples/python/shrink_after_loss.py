"""A rank is killed, the others go on without it. Run: python examples/python/shrink_after_loss.py"""

import multiprocessing
import os
import signal
import tempfile

import numpy as np

import hmc

RANKS, VICTIM = 3, 1


def work(rank, rendezvous):
    comm = hmc.init(rank, RANKS, rendezvous)
    step = 0
    while step < 100:
        if rank == VICTIM and step == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        values = np.full(1000, float(step))
        try:
            comm.all_reduce(values, timeout=30)
        except hmc.PeerLostError as error:
            print(f"rank {rank}, step {step}: {error}")
            comm = comm.shrink(timeout=30)
            # A rank may have finished the step in which another one got the error: all repeat the earliest.
            earliest = np.array([step])
            comm.all_reduce(earliest, op="min", timeout=30)
            step = int(earliest[0])
            continue
        assert (values == step * comm.size).all()
        step += 1
    print(f"rank {rank} is rank {comm.rank} of {comm.size} now; the old ranks are {comm.old_ranks}")
    comm.barrier(timeout=30)
    comm.close()


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
