"""``hmc bench``: speed of this machine, as ratios against memcpy and a raw shared flag measured in the same run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hmc.bench.sizes import parse_blocks, parse_sizes
from hmc.cli.run import Job

__all__ = ["run_bench"]

OPERATIONS = ("send", "put", "get", "blocks", "alltoall")


def run_bench(options: argparse.Namespace) -> int:
    """Runs pinned processes per transport; prints the table, writes JSON and a plot. Exit status 2 for wrong usage."""
    operations = [name for name in options.operations.split(",") if name]
    unknown = sorted(set(operations) - set(OPERATIONS))
    if unknown:
        print(f"hmc bench: unknown operations {', '.join(unknown)}; known: {', '.join(OPERATIONS)}", file=sys.stderr)
        return 2
    if options.ranks < 2 or (options.ranks > 2 and operations != ["alltoall"]):
        print("hmc bench: --ranks is at least 2, and only alltoall takes more", file=sys.stderr)
        return 2
    try:
        sizes = parse_sizes(options.sizes)
        blocks = parse_blocks(options.blocks)
    except ValueError as error:
        print(f"hmc bench: {error}", file=sys.stderr)
        return 2
    points: list[dict[str, Any]] = []
    for transport in options.transports.split(",") if options.transports else [""]:
        status = _measure(transport, operations, sizes, blocks, options, points)
        if status != 0:
            return 1
    from hmc.bench.report import draw, table

    table(points)
    if options.json:
        Path(options.json).write_text(json.dumps(points, indent=2) + "\n")
    if options.plot:
        print(draw(points, options.plot))
    return 0


def _measure(
    transport: str,
    operations: list[str],
    sizes: list[int],
    blocks: list[tuple[int, int]],
    options: argparse.Namespace,
    points: list[dict[str, Any]],
) -> int:
    task = json.dumps(
        {
            "transport": transport,
            "devices": [name for name in options.devices.split(",") if name],
            "operations": operations,
            "sizes": sizes,
            "blocks": blocks,
            "repeat": options.repeat,
        }
    )

    def on_line(rank: int, line: str) -> None:
        if line.startswith('{"hmc-bench"'):
            points.append(json.loads(line))
        else:
            sys.stderr.write(f"[{rank}] {line}")

    job = Job(command=[sys.executable, str(Path(__file__).with_name("worker.py")), task], processes=options.ranks, output=on_line)
    job.start()
    try:
        return job.wait()
    except KeyboardInterrupt:
        job.stop()
        raise
