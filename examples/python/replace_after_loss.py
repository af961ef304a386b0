"""A rank is killed, the others go on and a new process takes its place. Run: python examples/python/replace_after_loss.py"""

import multiprocessing
import os
import signal
import tempfile

import numpy as np

import hmc

RANKS, VICTIM, STEPS = 3, 1, 100


def train(comm, start):
    """The steps from the one that all ranks have reached."""
    first = np.array([start])
    comm.all_reduce(first, op="max", timeout=30)  # a newcomer has nothing: it takes over where the others are
    for step in range(int(first[0]), STEPS):
        if comm.rank == VICTIM and start == 0 and step == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        values = np.full(1000, float(step))
        try:
            comm.all_reduce(values, timeout=30)
        except hmc.PeerLostError as error:
            print(f"step {step}: {error}")
            return step
        assert (values == step * comm.size).all()
    return STEPS


def work(rank, rendezvous, invitations):
    comm = hmc.init(rank, RANKS, rendezvous)
    step = train(comm, 0)
    while step < STEPS:
        left = comm.shrink(timeout=30)
        if left.rank == 0:
            invitations.put(left.invite(RANKS - left.size))
        comm = left.grow(timeout=60)
        step = train(comm, step)
    print(f"rank {rank} is rank {comm.rank} of {comm.size} now")
    comm.barrier(timeout=30)
    comm.close()


def join(invitation):
    comm = hmc.join(invitation)
    print(f"a newcomer is rank {comm.rank} of {comm.size}")
    train(comm, -1)
    comm.barrier(timeout=30)
    comm.close()


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    invitations = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [spawn.Process(target=work, args=(rank, f"unix:{folder}/rendezvous", invitations)) for rank in range(RANKS)]
        for process in processes:
            process.start()
        processes.append(spawn.Process(target=join, args=(invitations.get(timeout=60),)))
        processes[-1].start()
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL, 0, 0]
    print("done")
