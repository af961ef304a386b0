"""hmc.experts on devices beside NCCL's all_to_all_single by torch: dispatch and combine of one layer of experts.

Usage: python bench/experts_devices.py [--ranks 2 4] [--tokens 128] [--hidden 7168] [--experts 64] [--topk 8] [--rounds 30]
[--json FILE], with Python of an environment that has torch, and devices of CUDA, one for each rank. Rows are bfloat16, grouped
by expert. "nccl": all_to_all of the counts, then of a row for each token and expert; grouping and the weighted sum are torch's,
on the device. Both sides have the same input; x2 is compared bit by bit, the sums within two units of bfloat16's last place, and
HMC's with its sum on the CPU bit by bit. Rounds alternate; medians of the slowest rank's time, each call with its end there.
"staged": bytes that passed through CPU memory in the measured rounds, of this layer and of the transports; "sum us": the kernel's
call alone, with its wait, of rows that are there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import hmc
import hmc.experts

Times = tuple[float, float]  # seconds of dispatch, of combine
DTYPE = "bfloat16"


class Nccl:
    """By torch.distributed: a row for each token and expert, sent as such."""

    def __init__(self, ranks: int, experts: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        self.ranks, self.local, self.x, self.ids, self.weights = ranks, experts // ranks, x, ids, weights

    def dispatch(self) -> torch.Tensor:
        flat = self.ids.reshape(-1)
        self.order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=self.ranks * self.local)
        table = torch.empty_like(counts)
        dist.all_to_all_single(table, counts)
        table = table.view(self.ranks, self.local)
        sends, receives = torch.stack([counts.view(self.ranks, self.local).sum(1), table.sum(1)]).tolist()
        self.sends, self.receives = sends, receives
        keys = torch.arange(self.local, device=flat.device).repeat(self.ranks).repeat_interleave(table.reshape(-1))
        self.grouped = torch.argsort(keys, stable=True)
        rows = torch.empty(sum(receives), self.x.shape[1], dtype=self.x.dtype, device=self.x.device)
        dist.all_to_all_single(rows, self.x[self.order // self.ids.shape[1]], receives, sends)
        return rows[self.grouped]

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        back = torch.empty_like(results)
        back[self.grouped] = results
        rows = torch.empty(len(self.order), self.x.shape[1], dtype=self.x.dtype, device=self.x.device)
        dist.all_to_all_single(rows, back, self.sends, self.receives)
        chosen = torch.empty_like(rows)
        chosen[self.order] = rows
        return torch.einsum("tkh,tk->th", chosen.view(*self.ids.shape, -1).float(), self.weights).to(self.x.dtype)


def timed(comm: hmc.Communicator, call: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    comm.barrier(timeout=60)
    start = time.perf_counter()
    found = call()
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def check_sum(results: torch.Tensor, topk: int) -> float:
    """The device's weighted sums of some of these rows are the CPU's, bit by bit. Seconds of the call."""
    tokens = len(results) // topk
    rows = results[: tokens * topk].contiguous()
    weights = np.random.default_rng(1).standard_normal((tokens, topk)).astype(np.float32)
    used = np.random.default_rng(2).random(weights.shape) < 0.8
    found = torch.empty(tokens, results.shape[1], dtype=results.dtype, device=results.device)
    wanted = np.empty((tokens, 2 * results.shape[1]), np.uint8)
    into, read = (hmc.Memory.from_array(array.view(torch.uint8)) for array in (found, rows))
    times = []
    for marks in (used, None, None, None, None):
        torch.cuda.synchronize()
        began = time.perf_counter()
        hmc._core.weighted_sum(into, read, weights, DTYPE, marks)
        times.append(time.perf_counter() - began)
        hmc._core.weighted_sum(wanted, rows.cpu().view(torch.uint8).numpy(), weights, DTYPE, marks)
        assert np.array_equal(found.cpu().view(torch.uint8).numpy(), wanted)
    return statistics.median(times[2:])


def work(store: str, rounds: int, sizes: dict[str, int]) -> tuple[dict[str, list[Times]], dict[str, float]]:
    """In a rank: seconds of every round; other figures by name."""
    rank = int(os.environ["HMC_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    found: dict[str, list[Times]] = {"hmc": [], "nccl": []}
    with hmc.init(devices=[f"cuda:{rank}"]) as comm:
        dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=comm.size, device_id=device)
        random = torch.Generator().manual_seed(rank)
        x = torch.randn(sizes["tokens"], sizes["hidden"], generator=random).bfloat16().to(device)
        ids = torch.stack([torch.randperm(sizes["experts"], generator=random)[: sizes["topk"]] for _ in range(len(x))]).to(device)
        weights = torch.rand(ids.shape, generator=random).to(device)
        peer = Nccl(comm.size, sizes["experts"], x, ids, weights)
        with hmc.experts.Buffer(comm, **sizes, dtype=DTYPE, device=str(device)) as buffer:
            for number in range(-5, rounds):
                if number == 0:
                    before = staged(comm, buffer)
                first, (x2, handle) = timed(comm, lambda: buffer.dispatch(x, ids, weights, timeout=60))
                results = buffer.results(handle)
                results.copy_(x2)
                second, y = timed(comm, lambda: buffer.combine(results, handle, timeout=60))  # noqa: B023
                third, rows = timed(comm, peer.dispatch)
                fourth, sums = timed(comm, lambda: peer.combine(rows))  # noqa: B023
                if number < 0:
                    assert torch.equal(x2.view(torch.int16), rows.view(torch.int16))
                    assert torch.allclose(y.float(), sums.float(), rtol=2**-6, atol=2**-6)
                    continue
                found["hmc"].append((first, second))
                found["nccl"].append((third, fourth))
            more = {"staged": staged(comm, buffer) - before, "sum us": check_sum(results, sizes["topk"]) * 1e6}
            more |= buffer.counters()
            # A rank that closes early would keep the others waiting inside NCCL.
            torch.cuda.synchronize()
            comm.barrier(timeout=60)
        dist.destroy_process_group()
        comm.barrier(timeout=60)
    return found, more


def staged(comm: hmc.Communicator, buffer: hmc.experts.Buffer) -> int:
    return buffer.counters()["bytes_staged"] + comm.context.counters()["bytes_staged"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    for name, default in (("tokens", 128), ("hidden", 7168), ("experts", 64), ("topk", 8), ("rounds", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="also write the figures")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("experts", "tokens", "hidden", "topk")}
    job = importlib.import_module(Path(__file__).stem).work  # classes of __main__ do not travel to other processes
    everything = {}
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            of_ranks = hmc.spawn(job, ranks, os.path.join(folder, "store"), options.rounds, sizes, timeout=300)
        row: dict[str, Any] = {}
        for name in ("hmc", "nccl"):
            for part, call in enumerate(("dispatch", "combine")):
                slowest = [max(times) for times in zip(*([one[part] for one in rank[name]] for rank, _ in of_ranks), strict=True)]
                row[f"{name} {call} us"] = round(statistics.median(slowest) * 1e6, 1)
        ours, theirs = (row[f"{name} dispatch us"] + row[f"{name} combine us"] for name in ("hmc", "nccl"))
        row |= {"sum us": round(statistics.median(more["sum us"] for _, more in of_ranks), 1)}
        row |= {name: sum(more[name] for _, more in of_ranks) for name in ("staged", "sums_on_device", "sums_on_cpu")}
        everything[ranks] = row | {"nccl / hmc": round(theirs / ours, 2)}
        print(json.dumps({"ranks": ranks, **sizes, **everything[ranks]}), flush=True)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
