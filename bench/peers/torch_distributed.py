"""torch.distributed on one backend: two processes, each with RANK set. Rank 0 prints one JSON object per point.

Usage: torch_distributed.py BACKEND REPEAT SIZES OPERATIONS, of send, all_reduce (f32), ddp (one step of 10 million parameters).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def send(size: int) -> Callable[[], None]:
    """A round trip."""
    rank = dist.get_rank()
    tensor = torch.full((size,), rank, dtype=torch.uint8)

    def call() -> None:
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)

    return call


def all_reduce(size: int) -> Callable[[], None]:
    tensor = torch.zeros(size // 4)
    return lambda: dist.all_reduce(tensor)


def ddp() -> Callable[[], None]:
    """Forward, backward, update. A batch of one: what there is to send is as much as what there is to compute."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(1600, 1600) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(1, 1600)

    def call() -> None:
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return call


def seconds_of(call: Callable[[], None], calls: int, repeat: int) -> float:
    samples = []
    for sample in range(repeat + 1):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if sample:
            samples.append((time.perf_counter() - start) / calls)
    return statistics.median(samples)


def main() -> None:
    backend, repeat, sizes, operations = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4].split(",")
    if backend == "hmc":
        import hmc.torch  # noqa: F401  makes the backend known
    dist.init_process_group(backend)
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})

    def report(operation: str, size: int, seconds: float) -> None:
        if dist.get_rank() == 0:
            print(json.dumps({"operation": operation, "bytes": size, "seconds": seconds}), flush=True)

    for size in sizes:
        calls = max(1, min(500, (64 << 20) // size))
        if "send" in operations:
            report("send", size, seconds_of(send(size), calls, repeat) / 2)
        if "all_reduce" in operations:
            report("all_reduce", size, seconds_of(all_reduce(size), calls, repeat))
    if "ddp" in operations:
        report("ddp step", 4 * 4 * (1600 * 1600 + 1600), seconds_of(ddp(), 5, repeat))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
