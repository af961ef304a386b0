"""`make bench-peers`: HMC's Python against Open MPI, NIXL, UCX and gloo in one run on this machine, as ratios.

Usage: python bench/peers/run.py [--repeat 5] [--largest 268435456] [--json FILE]. A peer that does not run is named and left out.
Ratios above 1 mean that HMC takes less time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
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
        print(f"  left out: {Path(command[-3] if len(command) > 2 else command[0]).name}: {tail[0][:200]}")
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
) -> Points:
    """HMC through its own Python benchmark."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [str(BIN / "hmc"), "bench", "--json", file.name, "--repeat", str(repeat), "--sizes", ",".join(map(str, sizes))]
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


def mpi(sizes: list[int], repeat: int, ranks: int = 2, single_copy: bool = True) -> Points:
    """Open MPI; without its single copy where `single_copy` is false."""
    command = [str(BIN / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "core" if ranks == 2 else "none"]
    if not single_copy:
        command += ["--mca", "smsc", "^cma,xpmem,knem,accelerator"]
    return lines([*command, "-n", str(ranks), sys.executable, str(HERE / "mpi.py"), str(repeat), json.dumps(sizes)])


def gloo(sizes: list[int], repeat: int) -> Points:
    """torch.distributed on gloo: two processes."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE / "gloo.py"), str(repeat), json.dumps(sizes)]
    with subprocess.Popen(command, env={**os.environ, **environment, "RANK": "1"}, stderr=subprocess.DEVNULL) as other:
        points = lines(command, {**environment, "RANK": "0"})
        if not points:
            other.kill()
    return points


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
                with subprocess.Popen(["taskset", "-c", "1", *command], env=environment, stdout=subprocess.DEVNULL) as server:
                    time.sleep(0.5)  # until it listens
                    try:
                        client = subprocess.run(
                            ["taskset", "-c", "0", *command, "127.0.0.1"],
                            env=environment, capture_output=True, text=True, timeout=120, check=False,
                        )  # fmt: skip
                    except subprocess.TimeoutExpired:
                        server.kill()
                        break
                    server.kill()
                found = re.findall(r"\d+(?:\.\d+)?", client.stdout.strip().splitlines()[-1]) if client.stdout.strip() else []
                if len(found) >= 6:  # iterations, three latencies in us, two bandwidths in MB/s, two rates
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
    options = parser.parse_args()
    repeat = options.repeat
    every = [8, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]
    sizes = [size for size in every if size <= options.largest]
    exchanged = [size for size in (64, 4096, 64 << 10, 1 << 20, 16 << 20, 64 << 20) if size <= options.largest]
    table: list[dict[str, Any]] = []
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
    compare("gloo", network, gloo(sizes, repeat), table)
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
