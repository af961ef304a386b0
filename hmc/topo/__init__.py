"""``hmc topo``: the cards of this host or of a written topology, what joins them, and the path chosen for every pair."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hmc.cli.devices import find_places, named_places, simulation
from hmc.cli.run import Job
from hmc.topo.report import as_data, show

__all__ = ["run_topo"]

# Run as a file, not with -m: that would look into the working directory first, which may be a source tree that is not built.
WORKER = Path(__file__).with_name("worker.py")


def run_topo(options: argparse.Namespace) -> int:
    """Prints, and draws and saves where asked. Exit status 1 when a process failed, 2 for wrong usage."""
    import hmc

    paths: list[list[dict[str, Any]]] = []
    try:
        if options.file:
            topology = hmc.Topology.load(options.file)
        else:
            environment = simulation(options.simulate, processes=0)
            places = find_places(environment)
            if options.devices:
                places = named_places(options.devices, places)
            status, text, paths = _ask([place.name for place in places], environment)
            if status != 0:
                return 1
            topology = hmc.Topology.parse(text)
    except (hmc.HmcError, ValueError) as error:
        print(f"hmc topo: {error}", file=sys.stderr)
        return 2
    if options.json:
        Path(options.json).write_text(json.dumps(as_data(topology, paths), indent=2) + "\n")
    show(topology, paths)
    if options.save:
        topology.save(options.save)
        print(f"topology: {options.save}")
    if options.picture:
        from hmc.topo.picture import draw

        print(draw(topology, paths, options.picture))
    return 0


def _ask(devices: list[str], environment: dict[str, str]) -> tuple[int, str, list[list[dict[str, Any]]]]:
    """Starts one process per card. Returns the exit status, the topology as text and every pair's path, by rank."""
    answers: dict[int, dict[str, Any]] = {}

    def on_line(rank: int, line: str) -> None:
        if line.startswith('{"hmc-topo"'):
            answers[rank] = json.loads(line)["hmc-topo"]
        else:
            print(f"[{rank}] {line.rstrip()}", file=sys.stderr)

    job = Job(command=[sys.executable, str(WORKER), *devices], processes=len(devices), environment=environment, output=on_line)
    try:
        job.start()
        status = job.wait()
    except KeyboardInterrupt:
        job.stop()
        raise
    if status != 0 or len(answers) != len(devices):
        return status or 1, "", []
    return 0, answers[0]["topology"], [answers[rank]["paths"] for rank in range(len(devices))]
