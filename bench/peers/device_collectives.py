"""Collectives of bf16 in device memory by hmc.Communicator and by NCCL through torch.distributed, in turns.

Usage: python bench/peers/device_collectives.py [--ranks N] [--sizes BYTES ...] [--one-process] [--by NAME ...] [--calls NAME ...]

Every rank is a process of its own, or all are cards of one process. Rank 0 prints JSON lines: medians of 7 turns. Sizes are bytes
of a rank's largest array. "alone": a call and its end; "in a row": calls behind one another on a stream, per call. HMC's results
of up to 32 MiB are compared with what torch computes before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import hmc

SIZES = [8, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
CALLS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]
WAYS = {"hmc": None, "hmc, kernel": "one kernel over mapped memory", "hmc, library": "vendor's library"}
TURNS = 8


class Arrays:
    """Of one rank, for calls whose largest array has ``size`` bytes."""

    def __init__(self, rank: int, ranks: int, size: int) -> None:
        elements = max(ranks, size // 2 // ranks * ranks)
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        self.inp = (torch.arange(elements, device=device) % 13 + rank).to(torch.bfloat16)
        self.out = torch.zeros_like(self.inp)
        self.block = self.inp[: elements // ranks].clone()
        self.part = torch.zeros_like(self.block)

    def of(self, call: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and input."""
        return {
            "reduce_scatter": (self.part, self.inp),
            "all_gather": (self.out, self.block),
            "broadcast": (self.out, self.out),
        }.get(call, (self.out, self.inp))


def nccl(call: str, arrays: Arrays) -> Callable[[], object]:
    out, inp = arrays.of(call)

    def all_reduce() -> None:  # NCCL's is in place: the copy is not timed, for the input's values do not matter
        dist.all_reduce(out)

    return {
        "all_reduce": all_reduce,
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(out, inp),
        "all_gather": lambda: dist.all_gather_into_tensor(out, inp),
        "broadcast": lambda: dist.broadcast(out, 0),
        "all_to_all": lambda: dist.all_to_all_single(out, inp),
    }[call]


class Job:
    """This process's ranks in HMC's Communicator."""

    def __init__(self, comm: hmc.Communicator, arrays: list[Arrays]) -> None:
        self.comm, self.arrays = comm, arrays

    def arguments(self, call: str) -> tuple[Any, ...]:
        if len(self.arrays) == 1:
            out, inp = self.arrays[0].of(call)
            return (out,) if call == "broadcast" else (out, inp)
        given = {}
        for member, arrays in zip(self.comm.local, self.arrays, strict=True):
            out, inp = arrays.of(call)
            given[member] = out if call == "broadcast" else (out, inp)
        return (given,)

    def alone(self, call: str, algorithm: str | None) -> Callable[[], object]:
        method, arguments = getattr(self.comm, call), self.arguments(call)
        return lambda: method(*arguments, algorithm=algorithm, timeout=60)

    def in_a_row(self, call: str, algorithm: str | None) -> Callable[[], hmc.Work] | None:
        if call == "all_to_all" or len(self.arrays) > 1:
            return None
        method, arguments = getattr(self.comm, "i" + call), self.arguments(call)
        stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
        return lambda: method(*arguments, algorithm=algorithm, stream=stream)


def synchronize(job: Job) -> None:
    for arrays in job.arrays:
        if arrays.inp.is_cuda:
            torch.cuda.synchronize(arrays.inp.device)


def timed(job: Job, call: Callable[[], object], calls: int, each: bool) -> float:
    """Seconds per call."""
    dist.barrier()
    synchronize(job)
    start = time.perf_counter()
    works = []
    for _ in range(calls):
        works.append(call())
        if each:
            synchronize(job)
    for work in works:
        if isinstance(work, hmc.Work):
            work.wait(60)
    synchronize(job)
    return (time.perf_counter() - start) / calls


def expected(job: Job, call: str, ranks: int, rank: int) -> list[torch.Tensor]:
    """By torch on this device, from what the ranks hold."""
    size = job.arrays[0].inp.nbytes
    results = []
    for position, arrays in enumerate(job.arrays):
        mine = rank + position
        inputs = [(arrays.inp.float() - mine + r).to(torch.bfloat16) for r in range(ranks)] if size <= 32 << 20 else []
        if not inputs:
            return []
        block = len(inputs[0]) // ranks
        total = sum(each.float() for each in inputs).to(torch.bfloat16)
        results.append(
            {
                "all_reduce": total,
                "reduce_scatter": total[mine * block : (mine + 1) * block],
                "all_gather": torch.cat([each[:block] for each in inputs]),
                "broadcast": inputs[0],
                "all_to_all": torch.cat([each[mine * block : (mine + 1) * block] for each in inputs]),
            }[call]
        )
    return results


def check(job: Job, call: str, algorithm: str | None, ranks: int, rank: int) -> None:
    for position, arrays in enumerate(job.arrays):
        out, _ = arrays.of(call)
        out.zero_()
        if call == "broadcast" and rank + position == 0:
            out.copy_(arrays.inp)
    synchronize(job)
    dist.barrier()
    job.alone(call, algorithm)()
    for arrays, right in zip(job.arrays, expected(job, call, ranks, rank), strict=False):
        if not torch.equal(arrays.of(call)[0], right):
            raise SystemExit(f"rank {rank}: {call} by {algorithm} of {arrays.inp.nbytes} bytes differs from what torch computes")


def measure(job: Job, rank: int, ranks: int, options: argparse.Namespace, size: int, call: str) -> None:
    ways: dict[str, tuple[Callable[[], object], bool]] = {}
    failed = {}
    if not options.one_process:
        ways["nccl, alone"] = (nccl(call, job.arrays[0]), True)
        ways["nccl, in a row"] = (nccl(call, job.arrays[0]), False)
    for name in options.by:
        try:
            check(job, call, WAYS[name], ranks, rank)
        except (hmc.HmcError, TypeError) as error:
            failed[name] = str(error)
            continue
        ways[f"{name}, alone"] = (job.alone(call, WAYS[name]), False)
        row = job.in_a_row(call, WAYS[name])
        if row is not None:
            ways[f"{name}, in a row"] = (row, False)
    calls = max(3, min(100, (256 << 20) // size))
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for name, (function, each) in ways.items():
            taken = timed(job, function, calls, each)
            if turn:
                samples[name].append(taken)
    if rank == 0:
        microseconds = {name: round(statistics.median(found) * 1e6, 1) for name, found in samples.items()}
        point = {"call": call, "ranks": ranks, "processes": 1 if options.one_process else ranks, "size": size, "us": microseconds}
        print(json.dumps(point | ({"failed": failed} if failed else {})), flush=True)


def run(rank: int, options: argparse.Namespace, folder: str) -> None:
    cuda, ranks = torch.cuda.is_available(), options.ranks
    mine = range(ranks) if options.one_process else [rank]
    processes = 1 if options.one_process else ranks
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{folder}/torch", rank=rank, world_size=processes)
    devices = [f"cuda:{each}" if cuda else "cpu" for each in mine]
    with hmc.init(rank=rank, size=processes, rendezvous=f"unix:{folder}/hmc", devices=devices) as comm:
        for size in options.sizes:
            held = []
            for each in mine:
                if cuda:
                    torch.cuda.set_device(each)
                held.append(Arrays(each, ranks, size))
            for call in options.calls:
                measure(Job(comm, held), rank, ranks, options, size, call)
        if rank == 0:
            counted = {
                key: value
                for key, value in comm.context.counters().items()
                if key in ("mapped.count", "native.count", "fused.count")
            }
            print(json.dumps({"counters": counted}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--calls", nargs="+", choices=CALLS, default=CALLS)
    parser.add_argument("--by", nargs="+", choices=list(WAYS), default=["hmc"])
    parser.add_argument("--one-process", action="store_true", help="all ranks are cards of one process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.one_process:
            run(0, options, folder)
        else:
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
            mp.spawn(run, args=(options, folder), nprocs=options.ranks)


if __name__ == "__main__":
    main()
