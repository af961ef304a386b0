"""`make bench`: HMC and raw baselines in one run on this machine, as ratios. Both cores should be otherwise idle.

Usage: python bench/run.py [--repeat 5] [--largest 268435456] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "build" / "package" / "bench" / "cpp"
# (label, environment): each is one run of the program, with its own baselines.
SETTINGS = [("default", {}), ("no ptrace", {"HMC_SHM_PTRACE": "0"})]


def measure(environment: dict[str, str], repeat: int, largest: int) -> list[dict[str, Any]]:
    """Every point of one run of hmc_perf."""
    result = subprocess.run(
        [str(PROGRAMS / "hmc_perf"), "", str(repeat), str(largest)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def rows(points: list[dict[str, Any]]) -> list[tuple[str, int, float, str]]:
    """(operation, bytes, seconds, ratio) with the yardstick that fits: the flag, memcpy, or memcpy of the same block pattern."""
    times = {(point["operation"], point["bytes"]): point["seconds"] for point in points}
    table = []
    for (operation, size), seconds in times.items():
        ratio = ""
        if operation in ("send/recv", "put+notify"):
            ratio = f"{seconds / times['raw flag', 8]:.2f}x the raw flag's time"
        elif operation.startswith("put blocks"):
            ratio = f"{times['memcpy blocks', size] / seconds:.2f}x memcpy of the same pattern"
        elif operation in ("put", "put first", "get", "send") and ("memcpy", size) in times:
            ratio = f"{times['memcpy', size] / seconds:.2f}x memcpy"
        table.append((operation, size, seconds, ratio))
    return table


def startup(repeat: int) -> list[tuple[str, float, str]]:
    """(what, seconds, ratio) of what is paid before and beside the data."""
    result = subprocess.run([str(PROGRAMS / "hmc_startup"), str(repeat)], stdout=subprocess.PIPE, text=True, check=True)
    times = {point["operation"]: point["seconds"] for point in map(json.loads, result.stdout.splitlines())}
    raw = {"round trip unix": "raw unix round trip", "round trip tcp with a key": "raw tcp round trip"}
    return [
        (what, seconds, f"{seconds / times[raw[what]]:.2f}x the raw socket's time" if what in raw else "")
        for what, seconds in times.items()
    ]


def main() -> None:
    """Prints one table per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="samples per point; the median is printed")
    parser.add_argument("--largest", type=int, default=256 << 20, help="largest transfer in bytes")
    parser.add_argument("--json", default="", metavar="FILE", help="also write every point")
    options = parser.parse_args()
    everything = {}
    for label, environment in SETTINGS:
        points = everything[label] = measure(environment, options.repeat, options.largest)
        print(f"\n{label}")
        for operation, size, seconds, ratio in rows(points):
            print(f"  {operation:<16} {size:>11} B  {seconds * 1e6:>12.2f} us  {size / seconds / 1e9:>7.2f} GB/s  {ratio}")
    print("\nbefore and beside the data")
    for what, seconds, ratio in startup(options.repeat):
        print(f"  {what:<26} {seconds * 1e6:>12.1f} us  {ratio}")
        everything.setdefault("startup", []).append({"operation": what, "seconds": seconds})
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
