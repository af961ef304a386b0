"""hmc.experts beside gloo's all_to_all_single: dispatch and combine of one layer of experts, on the ranks of this host.

Usage: python bench/experts.py [--ranks 2 4] [--tokens 128] [--hidden 7168] [--experts 64] [--topk 8] [--rounds 40] [--json FILE].
Run it with Python of an environment that has torch. Both sides have the same input and give the same output: rows grouped by
expert, then weighted sums, which both compute with the same function. "gloo" sends each row once to each rank, "gloo pairs" once
for each expert. "memcpy" copies as many bytes as a rank's x2 and results have. Rounds alternate; medians over the ranks' slowest.
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
from hmc.experts._sum import weighted_sum

Times = tuple[float, float]  # seconds of dispatch, of combine


class Case:
    """The routing and the rows of one rank: bfloat16."""

    def __init__(self, rank: int, ranks: int, experts: int, tokens: int, hidden: int, topk: int) -> None:
        random = np.random.default_rng(rank)
        self.rank, self.ranks, self.experts, self.hidden = rank, ranks, experts, hidden
        self.x = torch.from_numpy(random.standard_normal((tokens, hidden), np.float32)).bfloat16()
        self.ids = np.stack([random.permutation(experts)[:topk] for _ in range(tokens)])
        self.weights = random.random((tokens, topk), np.float32)
        self.owner = np.arange(experts) * ranks // experts


class Gloo:
    """The same by torch.distributed. ``once``: a row goes once to each rank, and is copied there for each of its experts."""

    def __init__(self, case: Case, once: bool) -> None:
        self.case, self.once = case, once

    def dispatch(self) -> torch.Tensor:
        case = self.case
        flat = case.ids.reshape(-1)
        order = np.argsort(flat, kind="stable")
        tokens = order // case.ids.shape[1]
        counts = torch.from_numpy(np.bincount(flat, minlength=case.experts))
        owners = case.owner[flat[order]]
        self.order, self.sends = order, np.bincount(owners, minlength=case.ranks).tolist()
        got = torch.empty_like(counts)
        dist.all_to_all_single(got, counts)
        table = got.view(case.ranks, -1)  # source, local expert
        self.receives = table.sum(1).tolist()
        # Grouped by source, then expert; wanted by expert, then source.
        keys = np.repeat(np.tile(np.arange(table.shape[1]), case.ranks), table.reshape(-1).numpy())
        self.grouped = torch.from_numpy(np.argsort(keys, kind="stable"))
        if not self.once:
            rows = torch.empty(sum(self.receives), case.hidden, dtype=torch.bfloat16)
            dist.all_to_all_single(rows, case.x[torch.from_numpy(tokens)], self.receives, self.sends)
            return rows[self.grouped]
        distinct, inverse = np.unique(owners * len(case.x) + tokens, return_inverse=True)
        sends = np.bincount(distinct // len(case.x), minlength=case.ranks)
        starts = np.cumsum(sends) - sends
        facts = torch.from_numpy(np.stack([sends, np.zeros_like(sends)], axis=1).reshape(-1))
        told = torch.empty_like(facts)
        dist.all_to_all_single(told, facts)
        receives = told.view(-1, 2)[:, 0].tolist()
        where = torch.empty(sum(self.receives), dtype=torch.int64)  # row among those of its source
        dist.all_to_all_single(where, torch.from_numpy(inverse - starts[owners]), self.receives, self.sends)
        rows = torch.empty(sum(receives), case.hidden, dtype=torch.bfloat16)
        dist.all_to_all_single(rows, case.x[torch.from_numpy(distinct % len(case.x))], receives, sends.tolist())
        where += torch.repeat_interleave(torch.tensor(np.cumsum(receives) - receives), torch.tensor(self.receives))
        return rows[where[self.grouped]]

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        case = self.case
        back = torch.empty_like(results)
        back[self.grouped] = results
        rows = torch.empty(case.ids.size, case.hidden, dtype=torch.bfloat16)
        dist.all_to_all_single(rows, back, self.sends, self.receives)
        chosen = torch.empty_like(rows)
        chosen[torch.from_numpy(self.order)] = rows
        y = torch.empty(case.x.shape, dtype=torch.bfloat16)
        bits = chosen.view(torch.uint8).numpy().reshape(*case.ids.shape, -1)
        weighted_sum(bits, case.weights, "bfloat16", y.view(torch.uint8).numpy())
        return y


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    dist.barrier()
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def work(store: str, rounds: int, sizes: dict[str, int]) -> dict[str, list[Times]]:
    """In a rank: seconds of every round."""
    torch.set_num_threads(1)
    with hmc.init() as comm:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
        case = Case(comm.rank, comm.size, **sizes)
        buffer = hmc.experts.Buffer(comm, sizes["experts"], sizes["hidden"], sizes["tokens"], topk=sizes["topk"])
        found: dict[str, list[Times]] = {"hmc": [], "gloo": [], "gloo pairs": [], "memcpy": [], "sum alone": []}
        bits = np.zeros((*case.ids.shape, 2 * case.hidden), np.uint8)
        answer = np.empty((len(case.x), 2 * case.hidden), np.uint8)
        copies: list[np.ndarray[Any, Any]] = []
        for number in range(-3, rounds):
            seconds: dict[str, Times] = {}
            first, (x2, handle) = timed(lambda: buffer.dispatch(case.x, case.ids, case.weights, timeout=60))
            results = buffer.results(handle)
            results.copy_(x2)  # an expert writes its results there
            second, y = timed(lambda: buffer.combine(results, handle, timeout=60))  # noqa: B023
            seconds["hmc"] = first, second
            for name in ("gloo", "gloo pairs"):
                peer = Gloo(case, name == "gloo")
                first, other = timed(peer.dispatch)
                second, other_y = timed(lambda: peer.combine(other))  # noqa: B023
                seconds[name] = first, second
                if number < 0:
                    assert torch.equal(other.view(torch.int16), results.view(torch.int16)), name
                    assert torch.equal(other_y.view(torch.int16), y.view(torch.int16)), name
            if not copies:
                copies = [np.zeros(part.nbytes, np.uint8) for part in (results, results, bits, bits)]
            pairs = ((copies[0], copies[1]), (copies[2], copies[3]))
            seconds["memcpy"] = tuple(timed(lambda: np.copyto(to, source))[0] for to, source in pairs)  # noqa: B023
            seconds["sum alone"] = 0.0, timed(lambda: weighted_sum(bits, case.weights, "bfloat16", answer))[0]
            if number >= 0:
                for name, times in seconds.items():
                    found[name].append(times)
        buffer.close()
        dist.destroy_process_group()
    return found


def medians(of_ranks: list[dict[str, list[Times]]]) -> dict[str, Times]:
    """Of the slowest rank of every round."""
    table = {}
    for name in of_ranks[0]:
        rounds = zip(*(rank[name] for rank in of_ranks), strict=True)
        slowest = [[max(rank[part] for rank in one) for part in (0, 1)] for one in rounds]
        table[name] = statistics.median(one[0] for one in slowest), statistics.median(one[1] for one in slowest)
    return table


def main() -> None:
    """Prints one table for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    for name, default in (("tokens", 128), ("hidden", 7168), ("experts", 64), ("topk", 8), ("rounds", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", default="", metavar="FILE", help="also write every figure")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("experts", "tokens", "hidden", "topk")}
    everything = {}
    job = importlib.import_module(Path(__file__).stem).work  # classes of __main__ do not travel to other processes
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            found = hmc.spawn(job, ranks, os.path.join(folder, "store"), options.rounds, sizes, timeout=600)
        table = everything[ranks] = medians(found)
        print(
            f"\n{ranks} ranks, {options.tokens} tokens x {options.hidden} bfloat16, top {options.topk} of {options.experts} experts"
        )
        total = sum(table["hmc"])
        for name, (first, second) in table.items():
            ratio = (first + second) / total
            print(f"  {name:<11} dispatch {first * 1e3:>7.2f} ms  combine {second * 1e3:>7.2f} ms  {ratio:>6.2f}x HMC's time")
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
