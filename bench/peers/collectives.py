"""Collectives of f32 in NumPy arrays, by HMC or by Open MPI: the same loop for both. Rank 0 prints one JSON object per point.

Usage: collectives.py hmc|mpi REPEAT SIZES, started once per rank by `hmc run` or mpirun. SIZES: JSON list of the bytes of a rank's
largest array in a call: what blocks there are, together.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Calls = dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, int], object]]


def by_hmc() -> tuple[Any, int, int, Calls, Callable[[], object]]:
    """The Communicator, rank and size, the calls on an input, an output and a rank's block, and the barrier."""
    import hmc

    comm = hmc.init(timeout=60)
    calls: Calls = {
        "all_reduce": lambda inp, out, block, root: comm.all_reduce(out, inp),
        "reduce_scatter": lambda inp, out, block, root: comm.reduce_scatter(block, inp),
        "all_gather": lambda inp, out, block, root: comm.all_gather(out, block),
        "broadcast": lambda inp, out, block, root: comm.broadcast(out, root),
        "all_to_all": lambda inp, out, block, root: comm.all_to_all(out, inp),
    }
    return comm, comm.rank, comm.size, calls, comm.barrier


def by_mpi() -> tuple[Any, int, int, Calls, Callable[[], object]]:
    """As by_hmc()."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    calls: Calls = {
        "all_reduce": lambda inp, out, block, root: comm.Allreduce(inp, out),
        "reduce_scatter": lambda inp, out, block, root: comm.Reduce_scatter_block(inp, block),
        "all_gather": lambda inp, out, block, root: comm.Allgather(block, out),
        "broadcast": lambda inp, out, block, root: comm.Bcast(out, root),
        "all_to_all": lambda inp, out, block, root: comm.Alltoall(inp, out),
    }
    return comm, comm.Get_rank(), comm.Get_size(), calls, comm.Barrier


def main() -> None:
    """Every call at every size: the median of REPEAT samples. The root of broadcasts goes round, so no rank runs ahead."""
    comm, rank, size, calls, barrier = by_hmc() if sys.argv[1] == "hmc" else by_mpi()
    for nbytes in json.loads(sys.argv[3]):
        elements = max(size, nbytes // 4 // size * size)
        inp = np.arange(elements, dtype="f4") + rank
        out, block = np.empty_like(inp), inp[: elements // size].copy()
        count = max(3, min(2000, (64 << 20) // max(nbytes, 1)))
        for name, call in calls.items():
            samples = []
            for sample in range(int(sys.argv[2]) + 1):
                barrier()
                start = time.perf_counter()
                for number in range(count):
                    call(inp, out, block, number % size)
                barrier()
                if sample:
                    samples.append((time.perf_counter() - start) / count)
            if rank == 0:
                print(json.dumps({"operation": name, "bytes": nbytes, "seconds": statistics.median(samples)}), flush=True)
    del comm


if __name__ == "__main__":
    main()
