"""HMC over verbs against perftest, both over Soft-RoCE in one virtual machine (tools/rdma_vm.py), as ratios.

Usage: python bench/rdma.py [--rounds 3] [--build build/package] [--json FILE]
Needs perftest and, for registrations, pyverbs; a round takes a few minutes. The two
programs take turns, so that what else the machine does meets both; every figure is a median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from rdma_vm import Guest  # noqa: E402

SIZES = [4096, 65536, 1 << 20, 4 << 20]
REGISTERED = 1 << 30

# perftest: a server on the one device, a client on the other. $1: program, the rest: its options. Prints the line of figures.
PERFTEST = """
gid_index() { basename "$(grep -ls 0000:0000:0000:0000:0000:ffff: /sys/class/infiniband/$1/ports/1/gids/* | head -1)"; }
measure() {
  program=$1; shift
  $program -F -d rxe1 -x $(gid_index rxe1) "$@" >/dev/null 2>&1 &
  for try in 1 2 3 4 5 6 7 8; do
    sleep 0.5
    out=$($program -F -d rxe0 -x $(gid_index rxe0) "$@" 127.0.0.1 2>&1) && break
  done
  wait
  echo "$out" | grep -E '^ +[0-9]+ ' | tail -1
}
"""


# Both on memory that has been written to: pages that nobody has touched would be most of the time.
RAW_REGISTRATION = """
import ctypes, mmap, time
from pyverbs import enums
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
size = {size}
memory = mmap.mmap(-1, size)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
ctypes.memset(address, 1, size)
domain = PD(Context(name="rxe0"))
start = time.perf_counter()
MR(domain, size, enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_READ | enums.IBV_ACCESS_REMOTE_WRITE, address)
print(time.perf_counter() - start)
"""
REGISTRATION = """
import os, time
os.environ["HMC_NICS"] = "rxe0"
import numpy as np
import hmc
memory = np.ones({size}, np.uint8)
with hmc.Context(transports="verbs") as context:
    context.register(np.ones(4096, np.uint8)).native("verbs")
    start = time.perf_counter()
    buffer = context.register(memory)
    buffer.native("verbs")
    print(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(1000):
        context.register(buffer.memory)
    print((time.perf_counter() - start) / 1000)
"""


def seconds_of(guest: Guest, python: str, script: str) -> list[float]:
    outcome = guest.run(f"cd / && {shlex.quote(python)} -c {shlex.quote(script)}", timeout=200)  # not among our sources
    if outcome.status != 0:
        raise RuntimeError(outcome.output)
    return [float(line) for line in outcome.output.split()]


def perftest(guest: Guest, program: str, size: int, options: str, column: int) -> float:
    line = f"{PERFTEST}measure {program} -s {size} {options}"
    outcome = guest.run(line, timeout=120)
    fields = outcome.output.split()
    if outcome.status != 0 or len(fields) <= column:
        raise RuntimeError(f"{program} of {size} bytes: {outcome.output or guest.console()}")
    return float(fields[column])


def run(guest: Guest, program: Path, rounds: int) -> dict[tuple[str, int], dict[str, float]]:
    """Seconds of one operation by (operation, bytes): "hmc", "perftest", "calls"."""
    samples: dict[tuple[str, int], dict[str, list[float]]] = {}

    def note(operation: str, size: int, key: str, value: float) -> None:
        samples.setdefault((operation, size), {}).setdefault(key, []).append(value)

    for _ in range(rounds):
        for size in SIZES:
            count = min(max((16 << 20) // size, 8), 1000)
            gigabits = perftest(guest, "ib_write_bw", size, f"-n {count * 3} -t 128 --report_gbits", 3)
            note("put", size, "perftest", size * 8 / (gigabits * 1e9))
        note("put+notify", 8, "perftest", perftest(guest, "ib_write_lat", 8, "-n 500", 5) * 1e-6)
        note("register", REGISTERED, "raw", seconds_of(guest, "/usr/bin/python3", RAW_REGISTRATION.format(size=REGISTERED))[0])
        once, again = seconds_of(guest, sys.executable, REGISTRATION.format(size=REGISTERED))
        note("register", REGISTERED, "hmc", once)
        note("register again", REGISTERED, "hmc", again)
        outcome = guest.run(f"{program} rxe0 rxe1 3", timeout=600)
        lines = outcome.output.splitlines()
        if outcome.status != 0 or not all(line.startswith("{") for line in lines):  # a warning: a connection that broke
            raise RuntimeError(outcome.output)
        for point in map(json.loads, lines):
            note(point["operation"], point["bytes"], "hmc", point["seconds"])
            note(point["operation"], point["bytes"], "calls", point["calls"])
            note(point["operation"], point["bytes"], "sleeps", point["sleeps"])
    return {
        where: {key: statistics.median(values) for key, values in measured.items()} for where, measured in sorted(samples.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "package")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if shutil.which("ib_write_bw") is None:
        sys.exit("ib_write_bw is not installed; as root: apt-get install perftest")
    with Guest() as guest:
        table = run(guest, (arguments.build / "bench" / "cpp" / "hmc_rdma_perf").resolve(), arguments.rounds)
    for (operation, size), row in table.items():
        text = f"{operation:20} {size:10}  {row['hmc'] * 1e6:10.1f} us"
        if "calls" in row:
            text += f"  {row['calls']:8.2f} calls {row['sleeps']:8.2f} sleeps"
        if operation == "put+notify":
            text += f"   {row['hmc'] / row['perftest']:.2f}x the time of ib_write_lat"
        elif "perftest" in row:
            text += f"   {row['perftest'] / row['hmc']:.2f}x ib_write_bw"
        elif operation == "put blocks":
            # What as many writes of one block cost without HMC: an acknowledgement each.
            raw = table["put", 4096]["perftest"] * size / 4096
            text += f"   {table['put whole', size]['hmc'] / row['hmc']:.2f}x one piece"
            text += f", {raw / row['hmc']:.2f}x ib_write_bw of 4 KiB"
        elif operation == "messages behind puts":
            # The way there and back alone, and what one connection has under way (2 MiB) at the pace of the puts.
            chunk = table["put", 4 << 20]["hmc"] / 2
            most = 3 * table["messages alone", size]["hmc"] + chunk
            text += f"   {row['hmc'] / most:.2f}x three times alone and 2 MiB of puts"
        elif "raw" in row:
            text += f"   {row['hmc'] / row['raw']:.2f}x the time of one ibv_reg_mr"
        print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps([{"operation": o, "bytes": s, **row} for (o, s), row in table.items()], indent=1))


if __name__ == "__main__":
    main()
