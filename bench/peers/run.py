"""`make bench-peers`: HMC's Python against Open MPI, NIXL, UCX and gloo in one run on this machine, as ratios.

Usage: python bench/peers/run.py [--repeat 5] [--largest 268435456] [--few-cores] [--collectives] [--torch] [--json FILE]. A
peer that does not run is named and left out. Ratios above 1 mean that HMC takes less time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
CORES = sorted(os.sched_getaffinity(0))[:2]
TWO_CORES = ["taskset", "-c", ",".join(map(str, CORES))]
PROGRAMS = HERE.parents[1] / "build" / "package" / "bench" / "cpp"
Points = dict[tuple[str, int], float]  # (operation, bytes): seconds


def lines(command: list[str], environment: dict[str, str] | None = None) -> Points:
    """The points that a peer's script prints; empty, with the reason on the terminal, when it does not run."""
    try:
        result = subprocess.run(
            command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=900, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"  left out: {command[0]}: {error}")
        return {}
    points = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"operation"')]
    if result.returncode != 0 or not points:
        tail = (result.stderr or result.stdout).strip().splitlines()[-1:] or ["it printed nothing"]
        print(f"  left out: {' '.join(Path(part).name for part in command)[:120]}: {tail[0][:200]}")
    return {(point["operation"], point["bytes"]): point["seconds"] for point in points}


def hmc(
    sizes: list[int],
    repeat: int,
    transport: str,
    operations: str,
    ranks: int = 2,
    ptrace: bool = True,
    blocks: str = "",
    environment: dict[str, str] | None = None,
    few: bool = False,
) -> Points:
    """HMC through its own Python benchmark; on two cores alone where `few`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            *(TWO_CORES if few else []),
            str(BIN / "hmc"),
            "bench",
            "--json",
            file.name,
            "--repeat",
            str(repeat),
            "--sizes",
            ",".join(map(str, sizes)),
        ]
        command += ["--operations", operations, "--ranks", str(ranks)]
        if transport:
            command += ["--transports", transport]
        if blocks:
            command += ["--blocks", blocks]
        subprocess.run(
            command,
            env={**os.environ, "HMC_SHM_PTRACE": "1" if ptrace else "0", **(environment or {})},
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=900,
        )
        return {(point["hmc-bench"], point["size"]): point["seconds"] for point in json.loads(Path(file.name).read_text())}


def mpi(
    sizes: list[int], repeat: int, ranks: int = 2, single_copy: bool = True, operations: str = "send,alltoall", few: bool = False
) -> Points:
    """Open MPI; without its single copy where `single_copy` is false; on two cores alone where `few`."""
    command = [*(TWO_CORES if few else []), str(BIN / "mpirun"), "--allow-run-as-root", "--oversubscribe"]
    command += ["--bind-to", "core" if ranks == 2 and not few else "none"]
    if not single_copy:
        command += ["--mca", "smsc", "^cma,xpmem,knem,accelerator"]
    script = [sys.executable, str(HERE / "mpi.py"), str(repeat), json.dumps(sizes), operations]
    return lines([*command, "-n", str(ranks), *script])


def torch_distributed(backend: str, sizes: list[int], repeat: int, operations: str) -> Points:
    """torch.distributed on `backend`: two processes."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    script = str(HERE / "torch_distributed.py")
    command = [sys.executable, "-W", "ignore", script, backend, str(repeat), json.dumps(sizes), operations]
    with subprocess.Popen(command, env={**os.environ, **environment, "RANK": "1"}, stderr=subprocess.DEVNULL) as other:
        points = lines(command, {**environment, "RANK": "0"})
        if not points:
            other.kill()
    return points


def under_torch(largest: int, repeat: int, rounds: int, table: list[dict[str, Any]]) -> None:
    """The backend "hmc" of torch.distributed against gloo, in turns."""
    small, large = [8, 4096, 64 << 10], [size for size in (1 << 20, 16 << 20, 64 << 20) if size <= largest]
    for sizes, operation, goal in ((small, "all_reduce", 10.0), (large, "all_reduce", 4.0), ([], "ddp", 1.5)):
        in_turns(
            "gloo, under torch.distributed",
            partial(torch_distributed, "hmc", sizes, repeat, operation),
            partial(torch_distributed, "gloo", sizes, repeat, operation),
            rounds, table, goal,
        )  # fmt: skip


def ucx(sizes: list[int], repeat: int, transports: str, smallest_put: int = 1 << 20, memory: str = "") -> Points:
    """UCX's own ucx_perftest: tag latency and put bandwidth. `transports` as in UCX_TLS, `memory` as in UCX_ALLOC_PRIO."""
    program = shutil.which("ucx_perftest")
    points: Points = {}
    if program is None:
        print("  left out: ucx_perftest is not installed (Debian: ucx-utils)")
        return points
    for test, operation in (("tag_lat", "send"), ("ucp_put_bw", "put")):
        for size in sizes:
            if test == "ucp_put_bw" and size < smallest_put:
                continue
            calls = max(5, min(20_000, (256 << 20) // size))
            command = [program, "-t", test, "-s", str(size), "-n", str(calls), "-w", str(max(2, calls // 10)), "-p", "13437", "-f"]
            environment = {**os.environ, "UCX_TLS": transports, **({"UCX_ALLOC_PRIO": memory} if memory else {})}
            samples = []
            for _ in range(repeat):
                found = _ucx_pair(command, environment)
                if len(found) >= 6:
                    latency, bandwidth = float(found[3]), float(found[5])
                    samples.append(latency * 1e-6 if operation == "send" else size / (bandwidth * (1 << 20)))
            if samples:
                points[operation, size] = sorted(samples)[len(samples) // 2]
    return points


def ucx_by_itself(sizes: list[int], repeat: int, table: list[dict[str, Any]]) -> None:
    """HMC's transport `ucx` against ucx_perftest over the same of UCX's transports.

    ucx_perftest streams; `put` waits for each. Over shared memory it puts into memory that UCX allocated and both map, a memcpy;
    HMC's buffers are not UCX's. The second comparison is with what UCX does for memory that it did not allocate.
    """
    block = 4096
    sizes = [size for size in sizes if size <= 64 << 20]
    for title, over, memory in (
        ("shared memory", "self,posix,sysv,cma", ""),
        ("shared memory, memory that is not UCX's", "self,posix,sysv,cma", "mmap"),
        ("tcp", "self,tcp", ""),
    ):
        ours = hmc(sizes, repeat, "ucx", "send,put,stream,blocks", blocks=f"16384x{block}", environment={"UCX_TLS": over})
        theirs = ucx([*sizes, block], repeat, over, block, memory)
        theirs.update({("stream", size): value for (operation, size), value in theirs.items() if operation == "put"})
        if ("put", block) in theirs:
            theirs[f"blocks 16384x{block}", 16384 * block] = 16384 * theirs["put", block]
        compare(f"HMC's ucx against ucx_perftest, {title}", ours, theirs, table)


def ucx_rate(sizes: list[int], repeat: int) -> Points:
    """UCX's tag message rate over shared memory by ucx_perftest, 16 in flight: seconds per message."""
    program = shutil.which("ucx_perftest")
    if program is None:
        print("  left out: ucx_perftest is not installed (Debian: ucx-utils)")
        return {}
    environment = {**os.environ, "UCX_TLS": "self,posix,sysv,cma"}
    points: Points = {}
    for size in sizes:
        command = [program, "-t", "tag_bw", "-s", str(size), "-n", "500000", "-w", "50000", "-O", "16", "-p", "13438", "-f"]
        samples = []
        for _ in range(repeat):
            last = _ucx_pair(command, environment)
            if len(last) >= 8 and float(last[7]) > 0:
                samples.append(1 / float(last[7]))
        if samples:
            points["rate", size] = statistics.median(samples)
    return points


def _ucx_pair(command: list[str], environment: dict[str, str]) -> list[str]:
    """The numbers in the last line of a ucx_perftest client: iterations, three latencies, two bandwidths, two rates."""
    first, second = (["taskset", "-c", str(core), *command] for core in (CORES[0], CORES[-1]))
    with subprocess.Popen(second, env=environment, stdout=subprocess.DEVNULL) as server:
        time.sleep(0.5)  # until it listens
        try:
            client = subprocess.run(
                [*first, "127.0.0.1"], env=environment, capture_output=True, text=True, timeout=120, check=False
            )
        except subprocess.TimeoutExpired:
            return []
        finally:
            server.kill()
    return re.findall(r"\d+(?:\.\d+)?", client.stdout.strip().splitlines()[-1]) if client.stdout.strip() else []


def in_turns(
    title: str, ours: Callable[[], Points], theirs: Callable[[], Points], rounds: int, table: list[dict[str, Any]], margin: float
) -> None:
    """Runs both `rounds` times, in alternating order, and compares the medians. `margin`: the ratio asked for."""
    samples: dict[str, dict[tuple[str, int], list[float]]] = {"ours": {}, "theirs": {}}
    for number in range(rounds):
        both = [("ours", ours), ("theirs", theirs)]
        for name, run in both if number % 2 == 0 else reversed(both):
            for key, seconds in run().items():
                samples[name].setdefault(key, []).append(seconds)
    medians = {name: {key: statistics.median(values) for key, values in points.items()} for name, points in samples.items()}
    compare(f"{title} (goal: {margin:.2f}x)", medians["ours"], medians["theirs"], table)


def few_cores(largest: int, repeat: int, rounds: int, table: list[dict[str, Any]]) -> None:
    """Message rate, and more ranks than cores: everything on two cores, both sides in turns."""
    print(f"\non cores {', '.join(map(str, CORES))}")
    small = [8, 64, 256, 1024]
    in_turns(
        "Open MPI, message rate, Python",
        lambda: hmc(small, repeat, "", "rate", few=True),
        lambda: mpi(small, repeat, operations="rate", few=True),
        rounds, table, 1.2,
    )  # fmt: skip
    in_turns(
        "UCX, message rate, C++",
        lambda: lines([*TWO_CORES, str(PROGRAMS / "hmc_rate"), str(repeat)]),
        lambda: ucx_rate(small, 1),
        rounds, table, 1.0,
    )  # fmt: skip
    for ranks, most in ((4, 64 << 20), (16, 1 << 20)):
        sizes = [size for size in (8, 512, 4096, 64 << 10, 1 << 20, 16 << 20, 64 << 20) if size <= min(largest, most)]
        in_turns(
            f"Open MPI, all-to-all of {ranks} ranks on {len(CORES)} cores",
            lambda sizes=sizes, ranks=ranks: hmc(sizes, repeat, "", "alltoall", ranks, few=True),
            lambda sizes=sizes, ranks=ranks: mpi(sizes, repeat, ranks, operations="alltoall", few=True),
            rounds, table, 1.0,
        )  # fmt: skip
    in_turns(
        "Open MPI, send and recv",
        lambda: hmc([64 << 10], repeat, "", "send"),
        lambda: mpi([64 << 10], repeat, operations="send"),
        rounds, table, 1 / 0.7,
    )  # fmt: skip
    sizes = [size for size in (64 << 10, 16 << 20) if size <= largest]
    in_turns(
        "Open MPI, all-to-all of 2 ranks",
        lambda: hmc(sizes, repeat, "", "alltoall"),
        lambda: mpi(sizes, repeat, operations="alltoall"),
        rounds, table, 1 / 0.9,
    )  # fmt: skip
    in_turns(
        "UCX over tcp",
        lambda: hmc([1 << 20], repeat, "tcp", "send,stream"),
        lambda: {("stream" if operation == "put" else operation, size): seconds
                 for (operation, size), seconds in ucx([1 << 20], 1, "self,tcp").items()},
        rounds, table, 1.0,
    )  # fmt: skip


def collectives(largest: int, repeat: int, rounds: int, table: list[dict[str, Any]]) -> None:
    """Every collective against Open MPI, with a core for each of two ranks, and four ranks on two cores."""
    script = str(HERE / "collectives.py")
    for ranks in (2, 4):
        most = largest if ranks == 2 else min(largest, 64 << 20)
        sizes = json.dumps([size for size in (8 * ranks, 4096, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20) if size <= most])
        ours = [*TWO_CORES, str(BIN / "hmc"), "run", "-n", str(ranks), "--no-prefix", script, "hmc"]
        theirs = [*TWO_CORES, str(BIN / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        in_turns(
            f"Open MPI, collectives of {ranks} ranks on {len(CORES)} cores",
            lambda command=(*ours, str(repeat), sizes): lines([*command]),
            lambda command=(*theirs, sys.executable, script, "mpi", str(repeat), sizes): lines([*command]),
            rounds, table, 1.0,
        )  # fmt: skip


def compare(title: str, ours: Points, theirs: Points, table: list[dict[str, Any]]) -> None:
    """Prints every point that both have."""
    common = [key for key in theirs if key in ours]
    if not common:
        return
    print(f"\n{title}")
    for operation, size in common:
        ratio = theirs[operation, size] / ours[operation, size]
        print(
            f"  {operation:<18} {size:>11} B  HMC {ours[operation, size] * 1e6:>11.2f} us"
            f"  peer {theirs[operation, size] * 1e6:>11.2f} us  {ratio:>6.2f}x"
        )
        table.append({"against": title, "operation": operation, "bytes": size, "hmc": ours[operation, size],
                      "peer": theirs[operation, size], "ratio": ratio})  # fmt: skip


def main() -> None:
    """Every comparison in turn; nothing else should run meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="samples per point; the median counts")
    parser.add_argument("--largest", type=int, default=256 << 20, help="largest transfer in bytes")
    parser.add_argument("--json", default="", metavar="FILE", help="also write every ratio")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side where both sides take turns")
    parser.add_argument("--few-cores", action="store_true", help="only message rate and more ranks than cores")
    parser.add_argument("--collectives", action="store_true", help="only collectives of 2 and 4 ranks on two cores")
    parser.add_argument("--torch", action="store_true", help="only the backends of torch.distributed")
    options = parser.parse_args()
    repeat = options.repeat
    every = [8, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]
    sizes = [size for size in every if size <= options.largest]
    exchanged = [size for size in (64, 4096, 64 << 10, 1 << 20, 16 << 20, 64 << 20) if size <= options.largest]
    table: list[dict[str, Any]] = []
    only = options.few_cores or options.collectives or options.torch
    if options.few_cores or not only:
        few_cores(options.largest, repeat, options.rounds, table)
    if options.collectives or not only:
        collectives(options.largest, repeat, options.rounds, table)
    if options.torch or not only:
        under_torch(options.largest, repeat, options.rounds, table)
    if not only:
        all_cores(sizes, exchanged, repeat, table)
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=2) + "\n")


def all_cores(sizes: list[int], exchanged: list[int], repeat: int, table: list[dict[str, Any]]) -> None:
    """Two ranks, each on a core of its own, at every size."""
    shared = hmc(sizes, repeat, "", "send,put,blocks")
    compare("Open MPI, send and recv", shared, mpi(sizes, repeat), table)
    compare("NIXL", shared, lines([sys.executable, str(HERE / "nixl_peer.py"), str(repeat), json.dumps(sizes)]), table)
    compare("UCX, shared memory", shared, ucx(sizes, repeat, "self,posix,sysv,cma"), table)
    compare(
        "Open MPI without single copy", hmc(sizes, repeat, "", "send", ptrace=False), mpi(sizes, repeat, single_copy=False), table
    )
    for ranks in (2, 4):
        ours, theirs = hmc(exchanged, repeat, "", "alltoall", ranks), mpi(exchanged, repeat, ranks)
        compare(f"Open MPI, all-to-all on {ranks} ranks", ours, {k: v for k, v in theirs.items() if k[0] == "alltoall"}, table)
    network = hmc(sizes, repeat, "tcp", "send,put")
    compare("UCX over tcp", network, ucx(sizes, repeat, "self,tcp"), table)
    ucx_by_itself(sizes, repeat, table)
    compare("gloo", network, torch_distributed("gloo", sizes, repeat, "send"), table)


if __name__ == "__main__":
    main()
