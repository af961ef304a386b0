"""``hmc topo``: the cards of this host or of a written topology, what joins them, and the path chosen for every pair."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hmc.cli.devices import find_places, named_places, simulation
from hmc.cli.ranks import Ranks
from hmc.cli.text import write_json
from hmc.topo.report import as_data, show

__all__ = ["run_topo"]

WORKER = Path(__file__).with_name("worker.py")


def run_topo(options: argparse.Namespace) -> int:
    """Prints, and draws and saves where asked. Exit status 1 when a process failed, 2 for wrong usage."""
    import hmc

    alone = "-" in (options.json, options.save)  # data on standard output
    paths: list[list[dict[str, Any]]] = []
    try:
        if options.json == options.save == "-":
            raise ValueError("--save and --json both write to standard output; give one of them a file")
        if options.json and options.json == options.save:
            raise ValueError(f"--save and --json both write {options.save}; give them two files")
        if options.file and (options.devices or options.simulate):
            raise ValueError("--file shows a written topology and asks no card; leave out --devices and --simulate")
        if options.file:
            topology = hmc.Topology.load(options.file)
        else:
            environment = simulation(options.simulate, processes=0)
            places = find_places(environment)
            if options.devices:
                places = named_places(options.devices, places)
            status, text, paths = _ask([place.name for place in places], environment)
            if status != 0:
                return status
            topology = hmc.Topology.parse(text)
    except (hmc.HmcError, ValueError) as error:
        print(f"hmc topo: {error}", file=sys.stderr)
        return 2
    if options.json:
        write_json(as_data(topology, paths), options.json)
    if not alone:
        show(topology, paths)
    out = sys.stderr if alone else sys.stdout
    if options.save == "-":
        sys.stdout.write(str(topology))
    elif options.save:
        try:
            topology.save(options.save)
        except hmc.HmcError as error:
            print(f"hmc topo: {error}", file=sys.stderr)
            return 2
        print(f"topology: {options.save}", file=out)
    if options.picture:
        from hmc.topo.picture import draw

        print(draw(topology, paths, options.picture), file=out)
    return 0


def _ask(devices: list[str], environment: dict[str, str]) -> tuple[int, str, list[list[dict[str, Any]]]]:
    """Starts one process per card. Returns the exit status, the topology as text and every pair's path, by rank."""
    answers: dict[int, dict[str, Any]] = {}

    def on_message(rank: int, message: dict[str, Any]) -> None:
        answers[rank] = message["hmc-topo"]

    status = Ranks("topo", WORKER, on_message).run(devices, len(devices), environment)
    if status != 0 or len(answers) != len(devices):
        return status or 1, "", []
    return 0, answers[0]["topology"], [answers[rank]["paths"] for rank in range(len(devices))]
