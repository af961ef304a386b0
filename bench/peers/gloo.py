"""torch.distributed on gloo (TCP). Started twice by bench/run.py with RANK set; rank 0 prints one JSON object per point."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    """Half round trips of send and recv."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    repeat, sizes = int(sys.argv[1]), json.loads(sys.argv[2])
    for bytes_ in sizes:
        calls = max(1, min(500, (64 << 20) // bytes_))
        tensor = torch.full((bytes_,), rank, dtype=torch.uint8)
        samples = []
        for sample in range(repeat + 1):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                if rank == 0:
                    dist.send(tensor, 1)
                    dist.recv(tensor, 1)
                else:
                    dist.recv(tensor, 0)
                    dist.send(tensor, 0)
            if sample:
                samples.append((time.perf_counter() - start) / calls / 2)
        if rank == 0:
            print(json.dumps({"operation": "send", "bytes": bytes_, "seconds": statistics.median(samples)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
