"""``hmc demo``: the main job on real work, every byte checked, and a table of what moved by which path and why."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hmc.cli.devices import check_transports, place_ranks, simulation
from hmc.cli.options import demo_picture
from hmc.cli.ranks import Ranks
from hmc.cli.text import mib, write_json
from hmc.demo.results import Results
from hmc.demo.screen import Screen

__all__ = ["run_demo"]

WORKER = Path(__file__).with_name("worker.py")
RANKS = 4
TOKENS, QUICK_TOKENS = 1024, 128


def run_demo(options: argparse.Namespace) -> int:
    """Starts the ranks, shows progress, prints the table, draws the picture. Exit status 1 if a check or a process failed."""
    tokens = QUICK_TOKENS if options.quick else options.tokens or TOKENS
    rounds = 2 if options.quick else 3
    ranks = options.ranks or RANKS
    try:
        if options.quick and options.tokens:
            raise ValueError(f"--quick takes a prompt of {QUICK_TOKENS} tokens; leave out --tokens or --quick")
        picture = demo_picture(options.picture)
        check_transports([options.transports])
        places = place_ranks(options.devices, ranks, options.simulate)
    except ValueError as error:
        print(f"hmc demo: {error}", file=sys.stderr)
        return 2
    results = Results(places, rounds)
    with Screen(results, tokens, sys.stderr if options.json == "-" else sys.stdout) as screen:

        def on_message(_rank: int, message: dict[str, Any]) -> None:
            results.add(message)
            screen.update(message)

        arguments = [str(tokens), str(rounds), options.transports, ",".join(place.name for place in places)]
        environment = simulation(options.simulate, ranks)
        # What a warning says of a path, the table says of all of them.
        environment["HMC_LOG"] = os.environ.get("HMC_LOG", "error")
        status = Ranks("demo", WORKER, on_message, screen.text).run(arguments, ranks, environment)
    if results.moved:
        screen.table()
    if options.json:
        write_json(asdict(results), options.json)
    if picture and results.moved:
        from hmc.demo.picture import draw

        screen.text(draw(results, picture))
    return _verdict(results, status, screen)


def _verdict(results: Results, status: int, screen: Screen) -> int:
    wrong = [check for check in results.checks if not check["good"]]
    if status == 0 and not wrong and results.checks:
        kind = " on simulated devices" if results.simulated() else ""
        screen.text(
            f"{len(results.checks)} checks passed{kind}: {mib(results.bytes_checked())} compared by checksums computed apart."
        )
        return 0
    for phase, src, dst in dict.fromkeys((check["phase"], check["src"], check["dst"]) for check in wrong):
        print(f"FAILED: {phase} from {src} to {dst}: bytes differ", file=sys.stderr)
    return status or 1
