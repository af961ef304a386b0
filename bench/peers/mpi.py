"""Open MPI through mpi4py. Started by bench/run.py under mpirun; rank 0 prints one JSON object per point."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

WINDOW = 16  # messages in flight, as in hmc bench


def main() -> None:
    """Usage: mpi.py REPEAT SIZES OPERATIONS. Half round trips and message rate between ranks 0 and 1, all-to-all among all."""
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    repeat, sizes, operations = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3].split(",")

    def report(
        operation: str, bytes_: int, calls: int, call: Callable[[], object], share: float, end: Callable[[], object] = lambda: None
    ) -> None:
        samples = []
        for sample in range(repeat + 1):
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            end()
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

        def window(arrays: list[np.ndarray]) -> None:
            if rank == 0:
                MPI.Request.Waitall([comm.Isend(array, 1) for array in arrays])
            else:
                MPI.Request.Waitall([comm.Irecv(array, 0) for array in arrays])

        if "rate" in operations:
            arrays = [np.full(bytes_, rank, np.uint8) for _ in range(WINDOW)]
            windows = max(1, min(2000, (64 << 20) // (WINDOW * bytes_)))
            report("rate", bytes_, windows, lambda arrays=arrays: window(arrays), 1 / WINDOW, comm.Barrier)
        if "send" in operations:
            report("send", bytes_, calls, ping, 0.5)
        if "alltoall" in operations and bytes_ <= 64 << 20:
            inp, out = np.ones(size * bytes_, np.uint8), np.zeros(size * bytes_, np.uint8)
            report("alltoall", bytes_, calls, lambda out=out, inp=inp: comm.Alltoall(inp, out), 1.0)


if __name__ == "__main__":
    main()
