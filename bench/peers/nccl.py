"""NCCL through torch.distributed, for devices: half round trips of send and recv, and all-to-all. Prints JSON lines from rank 0.

Usage: python bench/peers/nccl.py [ranks]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [8, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]


def median(call: Callable[[], None], calls: int) -> float:
    samples = []
    for sample in range(6):
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
            torch.cuda.synchronize()
        if sample:
            samples.append((time.perf_counter() - start) / calls)
    return statistics.median(samples)


def run(rank: int, ranks: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29555", rank=rank, world_size=ranks)
    for size in SIZES:
        calls = max(1, min(200, (256 << 20) // size))
        tensor = torch.ones(size, dtype=torch.uint8, device="cuda")

        def bounce(tensor: torch.Tensor = tensor) -> None:
            for turn in range(2):
                if rank == turn:
                    dist.send(tensor, 1 - rank)
                elif rank == 1 - turn:
                    dist.recv(tensor, 1 - rank)
                torch.cuda.synchronize()

        if ranks == 2:
            seconds = median(bounce, calls) / 2
            if rank == 0:
                print(json.dumps({"nccl": "send", "size": size, "seconds": seconds}), flush=True)
        if size * ranks > 1 << 30:
            continue
        inp, out = (torch.ones(size * ranks, dtype=torch.uint8, device="cuda") for _ in range(2))

        def exchange(out: torch.Tensor = out, inp: torch.Tensor = inp) -> None:
            dist.all_to_all_single(out, inp)

        seconds = median(exchange, calls)
        if rank == 0:
            print(json.dumps({"nccl": "alltoall", "ranks": ranks, "size": size, "seconds": seconds}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    mp.spawn(run, args=(processes,), nprocs=processes)
