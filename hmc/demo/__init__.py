"""``hmc demo``: the main job on real work, every byte checked, and a table of what moved by which path and why."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hmc.cli.devices import place_ranks, simulation
from hmc.cli.run import Job
from hmc.demo.results import Results
from hmc.demo.screen import Screen

__all__ = ["run_demo"]

# Run as a file, not with -m: that would look into the working directory first, which may be a source tree that is not built.
WORKER = Path(__file__).with_name("worker.py")


def run_demo(options: argparse.Namespace) -> int:
    """Starts the ranks, shows progress, prints the table, draws the picture. Exit status 1 if a check or a process failed."""
    if options.ranks < 2:
        print("hmc demo: --ranks must be at least 2", file=sys.stderr)
        return 2
    tokens = 128 if options.quick else options.tokens
    rounds = 2 if options.quick else 3
    if tokens < 16:
        print("hmc demo: --tokens must be at least 16, one page", file=sys.stderr)
        return 2
    try:
        places = place_ranks(options.devices, options.ranks, options.simulate)
    except ValueError as error:
        print(f"hmc demo: {error}", file=sys.stderr)
        return 2
    results = Results(places)
    with Screen(places, tokens=tokens) as screen:

        def on_line(rank: int, line: str) -> None:
            message = _parse(line)
            if message is None:
                screen.text(f"[{rank}] {line.rstrip()}")
            else:
                results.add(message)
                screen.update(message)

        command = [
            sys.executable,
            str(WORKER),
            str(tokens),
            str(rounds),
            options.transports,
            ",".join(place.name for place in places),
        ]
        environment = simulation(options.simulate, options.ranks)
        # What a warning says of a path, the table says of all of them.
        environment["HMC_LOG"] = os.environ.get("HMC_LOG", "error")
        job = Job(command, processes=options.ranks, environment=environment, output=on_line)
        try:
            job.start()
            status = job.wait()
        except KeyboardInterrupt:
            job.stop()
            raise
    if results.moved:
        screen.table(results)
    if options.json:
        Path(options.json).write_text(json.dumps(asdict(results), indent=2) + "\n")
    if options.picture and results.moved:
        from hmc.demo.picture import draw

        print(draw(results, options.picture))
    return _verdict(results, status)


def _parse(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "hmc-demo" in message else None


def _verdict(results: Results, status: int) -> int:
    ranks = len(results.places)
    wrong = [check for check in results.checks if not check["good"]]
    if status == 0 and not wrong and results.finished == ranks and results.checks:
        checked = sum(check["bytes"] for check in results.checks)
        kind = " (simulated devices)" if results.simulated() else ""
        print(f"{len(results.checks)} checks passed: {checked / 2**20:.0f} MiB{kind} compared by independently computed checksums")
        return 0
    for check in wrong:
        print(f"FAILED: {check['phase']} from {check['src']} to {check['dst']}: bytes differ", file=sys.stderr)
    if results.finished != ranks:
        print(f"FAILED: {ranks - results.finished} of {ranks} processes did not finish (status {status})", file=sys.stderr)
    return 1
