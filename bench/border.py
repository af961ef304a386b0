"""Border links of unequal rates: all_reduce between two islands with equal shares, then with shares by measured bandwidth.

Usage: python bench/border.py [--rates 25 50 100] [--mib 24] [--rounds 5] [--json FILE]
Each rank runs in a network namespace. Its link to the other island is shaped to one of the rates, in Mbit/s.
The bound is N / sum(b): each byte crosses the border once in each direction. Requires root or user namespaces, and tc. Where ranks
outnumber cores, rates of more than 100 Mbit/s measure the CPU.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import hmc

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

from hosts import Unavailable, wait_all  # noqa: E402
from shaped_islands import Link, ShapedIslands  # noqa: E402

JOB = """
import json, time
import numpy as np
import hmc

def rounds(comm, mine, out):
    seconds = []
    for _ in range({rounds} + 1):
        comm.barrier(timeout=120)
        begin = time.perf_counter()
        comm.all_reduce(out, mine, timeout=120)
        seconds.append(time.perf_counter() - begin)
        assert (out == comm.size * (comm.size + 1) // 2).all()
    return seconds[1:]

with hmc.init(timeout=60, topology=hmc.Topology.parse({topology!r})) as comm:
    mine = np.full({nbytes} // 4, comm.rank + 1, np.float32)
    out = np.empty_like(mine)
    even = rounds(comm, mine, out)
    begin = time.perf_counter()
    measured = comm.measure(refresh=True, timeout=300)
    took = time.perf_counter() - begin
    shares = rounds(comm, mine, out)
    plan = comm.plan("all_reduce", {nbytes})
    said = comm.exchange_bytes(json.dumps([even, shares]).encode(), timeout=60)
    if comm.rank == 0:
        links = [(link.source, link.target, link.bandwidth) for link in measured.links]
        print("RESULT", json.dumps([[json.loads(one) for one in said], took, links, plan.seconds]))
    comm.barrier(timeout=60)
"""


def slowest(times: list[list[float]]) -> float:
    """Median over the rounds of the slowest rank's time."""
    return statistics.median(map(max, zip(*times, strict=True)))


def run(rates: list[int], nbytes: int, rounds: int) -> dict[str, Any]:
    ranks = 2 * len(rates)
    with (
        tempfile.TemporaryDirectory() as folder,
        ShapedIslands([Link(rank // len(rates), rates[rank % len(rates)]) for rank in range(ranks)]) as islands,
    ):
        script = Path(folder) / "job.py"
        script.write_text(JOB.format(rounds=rounds, nbytes=nbytes, topology=islands.topology))
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        results = wait_all(islands.launch(script, port, hmc.keygen(), HMC_CACHE="off"), timeout=600)
    text = "".join(out for _, out in results)
    if any(status != 0 for status, _ in results):
        raise SystemExit(text)
    times, took, links, predicted = json.loads(next(line for line in text.splitlines() if "RESULT" in line).split("RESULT")[1])
    even, shares = slowest([one[0] for one in times]), slowest([one[1] for one in times])
    bound = nbytes / (sum(rates) * 1e6 / 8)
    across = [link for link in links if (link[0] < len(rates)) != (link[1] < len(rates))]
    best = [max(rate for source, _, rate in across if source == rank) for rank in range(ranks)]
    return {
        "rates": rates,
        "bytes": nbytes,
        "measured_mbit": [round(rate * 8 / 1e6, 1) for rate in best],
        "measure_seconds": took,
        "bound_seconds": bound,
        "even_seconds": even,
        "shares_seconds": shares,
        "predicted_seconds": predicted,
        "even_over_shares": even / shares,
        "bound_over_shares": bound / shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rates", type=int, nargs="+", default=[25, 50, 100], help="Mbit/s of each rank's link, alike for both islands"
    )
    parser.add_argument("--mib", type=int, default=24, help="size of the array (default 24)")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        result = run(options.rates, options.mib << 20, options.rounds)
    except Unavailable as reason:
        raise SystemExit(f"border: {reason}") from None
    print(f"links {result['rates']} Mbit/s, measured {result['measured_mbit']} in {result['measure_seconds']:.1f} s")
    print(f"equal shares       {result['even_seconds']:8.3f} s")
    print(f"by bandwidth       {result['shares_seconds']:8.3f} s   {result['even_over_shares']:.2f} times as fast")
    print(f"bound N / sum(b)   {result['bound_seconds']:8.3f} s   {result['bound_over_shares']:.2f} of the time by bandwidth")
    print(f"predicted          {result['predicted_seconds']:8.3f} s")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
