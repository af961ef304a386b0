"""all_reduce of bf16 in device memory under torch.distributed: by NCCL, by HMC that leaves it to NCCL, and by HMC itself, in turns.

Usage: python bench/peers/torch_devices.py [ranks]. Rank 0 prints JSON lines: seconds per call, back to back, medians of 7.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import hmc.torch  # noqa: F401  makes the backend known

SIZES = [8, 64 << 10, 1 << 20, 16 << 20, 256 << 20]


def seconds(tensor: torch.Tensor, group: dist.ProcessGroup, calls: int) -> float:
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def run(rank: int, ranks: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29556", rank=rank, world_size=ranks)
    everybody = list(range(ranks))
    groups = {"nccl": dist.group.WORLD, "hmc, by nccl": dist.new_group(everybody, backend="hmc")}
    os.environ["HMC_TORCH_NATIVE"] = "0"
    groups["hmc"] = dist.new_group(everybody, backend="hmc")
    for size in SIZES:
        calls = max(3, min(200, (512 << 20) // size))
        tensor = torch.zeros(max(1, size // 2), dtype=torch.bfloat16, device="cuda")
        samples: dict[str, list[float]] = {name: [] for name in groups}
        for turn in range(8):
            for name, group in groups.items():
                taken = seconds(tensor, group, calls)
                if turn:
                    samples[name].append(taken)
        if rank == 0:
            for name, found in samples.items():
                print(json.dumps({"all_reduce": name, "size": size, "seconds": statistics.median(found)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    mp.spawn(run, args=(processes,), nprocs=processes)
