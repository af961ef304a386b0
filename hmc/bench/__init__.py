"""``hmc bench``: speed of this machine, as ratios against memcpy and a raw shared flag measured in the same run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hmc.bench.sizes import parse_blocks, parse_sizes
from hmc.cli.devices import SIMULATED, Place, check_transports, place_ranks, simulation
from hmc.cli.ranks import Ranks
from hmc.cli.text import paragraph, write_json

__all__ = ["run_bench"]

BLOCKS = "4096x16K"
OPERATIONS = ("send", "put", "get", "stream", "rate", "blocks", "alltoall")


def run_bench(options: argparse.Namespace) -> int:
    """Runs pinned processes per transport; prints the table, writes JSON and a plot. Exit status 2 for wrong usage."""
    operations = [name for name in options.operations.split(",") if name]
    if not operations:
        print(f"hmc bench: --operations names none; known: {', '.join(OPERATIONS)}", file=sys.stderr)
        return 2
    unknown = sorted(set(operations) - set(OPERATIONS))
    if unknown:
        print(f"hmc bench: unknown operations {', '.join(unknown)}; known: {', '.join(OPERATIONS)}", file=sys.stderr)
        return 2
    if options.ranks < 2 or (options.ranks > 2 and operations != ["alltoall"]):
        print("hmc bench: --ranks is at least 2, and only alltoall takes more", file=sys.stderr)
        return 2
    transports = options.transports.split(",") if options.transports else [""]
    places: list[Place] = []
    try:
        sizes = parse_sizes(options.sizes)
        if options.blocks and "blocks" not in operations:
            raise ValueError("--blocks belongs to the operation blocks; add it to --operations, or leave out --blocks")
        blocks = parse_blocks(options.blocks or BLOCKS)
        check_transports(transports)
        if options.devices or options.simulate:
            places = place_ranks(options.devices, options.ranks, options.simulate)
    except ValueError as error:
        print(f"hmc bench: {error}", file=sys.stderr)
        return 2
    points: list[dict[str, Any]] = []
    status = 0
    for transport in transports:
        if status == 0:
            status = _measure(transport, operations, sizes, blocks, places, options, points)
    if not points:
        return status
    from hmc.bench.report import draw, table

    simulated = any(place.provenance == "simulated" for place in places)
    if options.json:
        write_json(points, options.json)
    if options.json != "-":
        table(points)
        if simulated:
            print(paragraph(SIMULATED))
    if options.plot:
        print(draw(points, options.plot, simulated), file=sys.stderr if options.json == "-" else sys.stdout)
    return status


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

    def on_message(_rank: int, message: dict[str, Any]) -> None:
        points.append({**message, "devices": [place.label for place in places] or ["cpu"]})

    worker = Path(__file__).with_name("worker.py")
    return Ranks("bench", worker, on_message).run([task], options.ranks, simulation(options.simulate, options.ranks))
