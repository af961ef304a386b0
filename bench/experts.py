"""hmc.experts beside gloo's all_to_all_single: dispatch and combine of one layer of experts, on the ranks of this host.

Usage: python bench/experts.py [--ranks 2 4] [--tokens 128] [--hidden 7168] [--experts 64] [--topk 8] [--rounds 40] [--json FILE]
Run it with Python of an environment that has torch. Both sides have the same input and the same output, which is compared, in
two forms:

- grouped: x2 has a row for each token and expert, grouped by expert. "gloo" sends a row to a rank once and copies it there for each
  of its experts; "gloo pairs" sends it once for each expert.
- once: x2 has a row for each token and rank (once=True).

"memcpy" copies as many bytes as x2 has, and as many as a rank gets back. "sum alone" is the weighted sum at the end of combine,
which both sides compute with the same function. Rounds alternate; medians of the slowest rank's time. "CPU" is the median of a
rank's CPU time for both calls, threads included: it hardly depends on what else the machine does.
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

Times = tuple[float, float, float]  # seconds of dispatch, of combine, of CPU
COMMUNICATORS: list[hmc.Communicator] = []  # of this rank: one


class Case:
    """The routing and the rows of one rank: bfloat16."""

    def __init__(self, rank: int, ranks: int, experts: int, tokens: int, hidden: int, topk: int) -> None:
        random = np.random.default_rng(rank)
        self.rank, self.ranks, self.experts, self.hidden = rank, ranks, experts, hidden
        self.x = torch.from_numpy(random.standard_normal((tokens, hidden), np.float32)).bfloat16()
        self.ids = np.stack([random.permutation(experts)[:topk] for _ in range(tokens)])
        self.weights = random.random((tokens, topk), np.float32)
        self.owner = np.repeat(np.arange(ranks), np.diff(np.arange(ranks + 1) * experts // ranks))
        self.tokens = len(self.x)


def exchange(out: list[int], inp: list[int], rows: torch.Tensor) -> torch.Tensor:
    got = torch.empty(sum(out), *rows.shape[1:], dtype=rows.dtype)
    dist.all_to_all_single(got, rows, out, inp)
    return got


class Pairs:
    """By torch.distributed: a row for each token and expert, sent as such."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def route(self) -> None:
        """The rank of each (token, expert) pair, and how received pairs are grouped by expert."""
        case = self.case
        flat = case.ids.reshape(-1)
        self.order = np.argsort(flat, kind="stable")
        self.owners = case.owner[flat[self.order]]
        self.sends = np.bincount(self.owners, minlength=case.ranks).tolist()
        counts = torch.from_numpy(np.bincount(flat, minlength=case.experts))
        table = exchange([len(counts) // case.ranks] * case.ranks, [len(counts) // case.ranks] * case.ranks, counts)
        table = table.view(case.ranks, -1)  # source, local expert
        self.receives = table.sum(1).tolist()
        keys = np.repeat(np.tile(np.arange(table.shape[1]), case.ranks), table.reshape(-1).numpy())
        self.grouped = torch.from_numpy(np.argsort(keys, kind="stable"))

    def dispatch(self) -> torch.Tensor:
        self.route()
        tokens = torch.from_numpy(self.order // self.case.ids.shape[1])
        return exchange(self.receives, self.sends, self.case.x[tokens])[self.grouped]

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        case = self.case
        back = torch.empty_like(results)
        back[self.grouped] = results
        rows = exchange(self.sends, self.receives, back)
        chosen = torch.empty_like(rows)
        chosen[torch.from_numpy(self.order)] = rows
        return summed(case, chosen.view(*case.ids.shape, -1), case.weights)


class Grouped(Pairs):
    """A row is sent to each rank once, and copied there for each of its experts."""

    def dispatch(self) -> torch.Tensor:
        self.route()
        case = self.case
        tokens = self.order // case.ids.shape[1]
        distinct, inverse = np.unique(self.owners * case.tokens + tokens, return_inverse=True)
        sends = np.bincount(distinct // case.tokens, minlength=case.ranks)
        receives = exchange([1] * case.ranks, [1] * case.ranks, torch.from_numpy(sends)).tolist()
        # Of each pair: the row among those of its source.
        where = exchange(self.receives, self.sends, torch.from_numpy(inverse - (np.cumsum(sends) - sends)[self.owners]))
        rows = exchange(receives, sends.tolist(), case.x[torch.from_numpy(distinct % case.tokens)])
        where += torch.repeat_interleave(torch.tensor(np.cumsum(receives) - receives), torch.tensor(self.receives))
        return rows[where[self.grouped]]


class Once:
    """A row for each token and rank, with its experts and weights."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def dispatch(self) -> torch.Tensor:
        case = self.case
        owners = case.owner[case.ids]
        distinct = np.unique(owners * case.tokens + np.arange(case.tokens)[:, None])
        self.tokens, ranks = distinct % case.tokens, distinct // case.tokens
        sends = np.bincount(ranks, minlength=case.ranks)
        self.receives = exchange([1] * case.ranks, [1] * case.ranks, torch.from_numpy(sends)).tolist()
        self.sends = sends.tolist()
        here = owners[self.tokens] == ranks[:, None]
        facts = np.stack([np.where(here, case.ids[self.tokens], -1), np.where(here, case.weights[self.tokens], 0)], axis=1)
        self.facts = exchange(self.receives, self.sends, torch.from_numpy(facts.astype(np.float32)))
        return exchange(self.receives, self.sends, case.x[torch.from_numpy(self.tokens)])

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        case = self.case
        rows = exchange(self.sends, self.receives, results)
        width = min(case.ids.shape[1], case.ranks)
        chosen = torch.zeros(case.tokens, width, case.hidden, dtype=torch.bfloat16)
        order = np.argsort(self.tokens, kind="stable")
        first = np.searchsorted(self.tokens[order], np.arange(case.tokens))
        place = np.arange(len(order)) - first[self.tokens[order]]
        chosen[torch.from_numpy(self.tokens[order]), torch.from_numpy(place)] = rows[torch.from_numpy(order)]
        return summed(case, chosen, np.ones((case.tokens, width), np.float32))


def summed(case: Case, rows: torch.Tensor, weights: np.ndarray[Any, Any]) -> torch.Tensor:
    y = torch.empty(case.x.shape, dtype=torch.bfloat16)
    bits = rows.view(torch.uint8).numpy().reshape(*weights.shape, -1)
    hmc._core.weighted_sum(y.view(torch.uint8).numpy(), bits, weights, "bfloat16")
    return y


FORMS: dict[str, dict[str, type[Pairs] | type[Once]]] = {
    "grouped": {"gloo": Grouped, "gloo pairs": Pairs},
    "once": {"gloo": Once},
}


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, seconds of CPU, result). The ranks begin within microseconds: after gloo's barrier they do not."""
    COMMUNICATORS[0].barrier(timeout=60)
    cpu, start = time.process_time(), time.perf_counter()
    found = call()
    return time.perf_counter() - start, time.process_time() - cpu, found


def both(dispatch: Callable[[], torch.Tensor], combine: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Times, Any, Any]:
    first, cpu, x2 = timed(dispatch)
    second, more, y = timed(lambda: combine(x2))
    return (first, second, cpu + more), x2, y


class Hmc:
    """By HMC. An expert would write its results into the Buffer's memory."""

    def __init__(self, buffer: hmc.experts.Buffer, case: Case) -> None:
        self.buffer, self.case = buffer, case

    def dispatch(self) -> torch.Tensor:
        x2, self.handle = self.buffer.dispatch(self.case.x, self.case.ids, self.case.weights, timeout=60)
        self.results = self.buffer.results(self.handle)
        return x2

    def combine(self, _: torch.Tensor) -> torch.Tensor:
        return self.buffer.combine(self.results, self.handle, timeout=60)


def work(store: str, rounds: int, sizes: dict[str, int], form: str) -> dict[str, list[Times]]:
    """In a rank: seconds of every round."""
    torch.set_num_threads(1)
    with hmc.init() as comm:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.size)
        COMMUNICATORS.append(comm)
        case = Case(comm.rank, comm.size, **sizes)
        arguments = {name: sizes[name] for name in ("experts", "hidden", "tokens", "topk")}
        buffer = hmc.experts.Buffer(comm, **arguments, once=form == "once")
        found: dict[str, list[Times]] = {}
        width = sizes["topk"] if form == "grouped" else min(sizes["topk"], comm.size)
        weights = case.weights if form == "grouped" else np.ones((case.tokens, width), np.float32)
        rows = np.zeros((case.tokens, width, 2 * case.hidden), np.uint8)
        for number in range(-3, rounds):
            seconds: dict[str, Times] = {}
            ours = Hmc(buffer, case)

            def dispatch(ours: Hmc = ours) -> torch.Tensor:
                return ours.dispatch()

            first, cpu, x2 = timed(dispatch)
            ours.results.copy_(x2)
            second, more, y = timed(lambda: ours.combine(x2))  # noqa: B023
            seconds["hmc"] = first, second, cpu + more
            for name, kind in FORMS[form].items():
                peer = kind(case)
                seconds[name], other, other_y = both(peer.dispatch, peer.combine)
                if number < 0:
                    assert torch.equal(other.view(torch.int16), ours.results.view(torch.int16)), name
                    assert torch.equal(other_y.view(torch.int16), y.view(torch.int16)), name
            if number < 0:
                copies = [np.zeros(part, np.uint8) for part in (x2.nbytes, x2.nbytes, rows.nbytes, rows.nbytes)]
            one, cpu, _ = timed(lambda: np.copyto(copies[0], copies[1]))  # noqa: B023
            two, more, _ = timed(lambda: np.copyto(copies[2], copies[3]))  # noqa: B023
            seconds["memcpy"] = one, two, cpu + more
            two, more, _ = timed(lambda: summed(case, torch.from_numpy(rows), weights))
            seconds["sum alone"] = 0.0, two, more
            if number >= 0:
                for name, times in seconds.items():
                    found.setdefault(name, []).append(times)
        comm.barrier()
        buffer.close()
        dist.destroy_process_group()
    return found


def medians(of_ranks: list[dict[str, list[Times]]]) -> dict[str, Times]:
    """Of the slowest rank of every round."""
    table = {}
    for name in of_ranks[0]:
        rounds = zip(*(rank[name] for rank in of_ranks), strict=True)
        slowest = [[max(rank[part] for rank in one) for part in range(3)] for one in rounds]
        first, second, cpu = (statistics.median(one[part] for one in slowest) for part in range(3))
        table[name] = first, second, cpu
    return table


def main() -> None:
    """Prints one table for each form and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    for name, default in (("tokens", 128), ("hidden", 7168), ("experts", 64), ("topk", 8), ("rounds", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", default="", metavar="FILE", help="also write every figure")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("experts", "tokens", "hidden", "topk")}
    everything = {}
    job = importlib.import_module(Path(__file__).stem).work  # classes of __main__ do not travel to other processes
    for ranks in options.ranks:
        for form in options.forms:
            with tempfile.TemporaryDirectory() as folder:
                found = hmc.spawn(job, ranks, os.path.join(folder, "store"), options.rounds, sizes, form, timeout=600)
            table = everything[f"{form}, {ranks}"] = medians(found)
            what = f"{options.tokens} tokens x {options.hidden} bfloat16, top {options.topk} of {options.experts} experts"
            print(f"\n{form}: {ranks} ranks, {what}")
            first, second, cpu = table["hmc"]
            for name, times in table.items():
                ratios = f"{sum(times[:2]) / (first + second):.2f}x HMC's time, {times[2] / cpu:.2f}x its CPU"
                print(f"  {name:<11} dispatch {times[0] * 1e3:>7.2f} ms  combine {times[1] * 1e3:>7.2f} ms  {ratios}")
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
