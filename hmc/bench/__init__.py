"""``hmc bench``: speed of this machine, as ratios against memcpy and a raw shared flag measured in the same run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hmc.bench.sizes import parse_blocks, parse_sizes
from hmc.cli.devices import SIMULATED, Place, place_ranks, simulation
from hmc.cli.run import Job

__all__ = ["run_bench"]

OPERATIONS = ("send", "put", "get", "stream", "blocks", "alltoall")


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
    places: list[Place] = []
    if options.devices or options.simulate:
        try:
            places = place_ranks(options.devices, options.ranks, options.simulate)
        except ValueError as error:
            print(f"hmc bench: {error}", file=sys.stderr)
            return 2
    points: list[dict[str, Any]] = []
    for transport in options.transports.split(",") if options.transports else [""]:
        status = _measure(transport, operations, sizes, blocks, places, options, points)
        if status != 0:
            return 1
    from hmc.bench.report import draw, table

    table(points)
    simulated = any(place.provenance == "simulated" for place in places)
    if simulated:
        print(SIMULATED)
    if options.json:
        Path(options.json).write_text(json.dumps(points, indent=2) + "\n")
    if options.plot:
        print(draw(points, options.plot, simulated))
    return 0


def _measure(
    transport: str,
    operations: list[str],
    sizes: list[int],
    blocks: list[tuple[int, int]],
    places: list[Place],
    options: argparse.Namespace,
    points: list[dict[str, Any]],
) -> int:
    task = json.dumps(
        {
            "transport": transport,
            "devices": [place.name for place in places],
            "operations": operations,
            "sizes": sizes,
            "blocks": blocks,
            "repeat": options.repeat,
        }
    )

    def on_line(rank: int, line: str) -> None:
        if line.startswith('{"hmc-bench"'):
            points.append({**json.loads(line), "devices": [place.label for place in places] or ["cpu"]})
        else:
            sys.stderr.write(f"[{rank}] {line}")

    command = [sys.executable, str(Path(__file__).with_name("worker.py")), task]
    environment = simulation(options.simulate, options.ranks)
    job = Job(command, processes=options.ranks, environment=environment, output=on_line)
    job.start()
    try:
        return job.wait()
    except KeyboardInterrupt:
        job.stop()
        raise
