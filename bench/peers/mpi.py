"""Open MPI through mpi4py. Started by bench/run.py under mpirun; rank 0 prints one JSON object per point."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Half round trips of send and recv between ranks 0 and 1, then all-to-all among all."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    repeat, sizes = int(sys.argv[1]), json.loads(sys.argv[2])

    def report(operation: str, bytes_: int, calls: int, call: Callable[[], object], share: float) -> None:
        samples = []
        for sample in range(repeat + 1):
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            if sample:
                samples.append((time.perf_counter() - start) / calls * share)
        if rank == 0:
            print(json.dumps({"operation": operation, "bytes": bytes_, "seconds": statistics.median(samples)}), flush=True)

    for bytes_ in sizes:
        calls = max(1, min(2000, (64 << 20) // bytes_))
        array = np.full(bytes_, rank, np.uint8)

        def ping(array: np.ndarray = array) -> None:
            if rank == 0:
                comm.Send(array, 1)
                comm.Recv(array, 1)
            else:
                comm.Recv(array, 0)
                comm.Send(array, 0)

        if size == 2:
            report("send", bytes_, calls, ping, 0.5)
        if bytes_ <= 64 << 20:
            inp, out = np.ones(size * bytes_, np.uint8), np.zeros(size * bytes_, np.uint8)
            report("alltoall", bytes_, calls, lambda out=out, inp=inp: comm.Alltoall(inp, out), 1.0)


if __name__ == "__main__":
    main()
