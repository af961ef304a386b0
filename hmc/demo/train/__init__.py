"""``hmc demo --train``: two islands of different vendor and speed train one model, beside each island alone."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from hmc.cli.devices import check_transports, find_places, place_ranks, simulation
from hmc.cli.options import demo_picture
from hmc.cli.ranks import Ranks
from hmc.cli.text import write_json
from hmc.demo.train.model import BATCH
from hmc.demo.train.results import Training
from hmc.demo.train.screen import Screen

__all__ = ["run_training"]

WORKER = Path(__file__).with_name("worker.py")

#: Emulated speed of a card of the second vendor relative to one of the first.
RELATIVE_SPEED = 0.6
#: What a step on all cards together should take in seconds: long beside what NumPy and the all_reduce take on a small machine.
STEP, QUICK_STEP = 0.3, 0.06


def run_training(options: argparse.Namespace) -> int:
    """Starts the ranks, prints tables and checks, draws the picture. Exit status 1 if a check or a process failed."""
    steps = 8 if options.quick else 20
    # Ranks that share a core delay each other's all_reduce by more than cards do.
    ranks = options.ranks or (4 if len(os.sched_getaffinity(0)) >= 4 else 2)
    notice = ""
    simulate = options.simulate
    try:
        if options.tokens:
            raise ValueError("--train has no prompts; leave out --tokens")
        picture = demo_picture(options.picture)
        check_transports([options.transports])
        if not simulate and not options.devices and len(_vendors([place.name for place in find_places({})]) - {"cpu"}) != 2:
            simulate = ["cuda", "rocm"]
            notice = "This machine has no devices of two vendors: cuda and rocm are simulated."
        places = place_ranks(options.devices, ranks, simulate)
        vendors = _vendors([place.name for place in places])
        if len(vendors) != 2:
            have = ", ".join(sorted(vendors))
            raise ValueError(f"--train takes devices of two vendors, the ranks have {have}; name two by --simulate or --devices")
    except ValueError as error:
        print(f"hmc demo: {error}", file=sys.stderr)
        return 2
    training = Training(places, steps)
    counts = [len(training.island(vendor)) for vendor in training.vendors]
    # Of a card of each vendor, so that a step of both islands takes what it should.
    dilation = (QUICK_STEP if options.quick else STEP) * (counts[0] + counts[1] * RELATIVE_SPEED) / BATCH
    dilations = [dilation, dilation / RELATIVE_SPEED]
    with Screen(training, dilations, sys.stderr if options.json == "-" else sys.stdout, notice) as screen:

        def on_message(_rank: int, message: dict[str, Any]) -> None:
            training.add(message)
            screen.update(message)

        arguments = [str(steps), options.transports, ",".join(place.name for place in places), ",".join(map(repr, dilations))]
        environment = simulation(simulate, ranks)
        environment["HMC_LOG"] = os.environ.get("HMC_LOG", "error")
        # The ranks share the machine's cores; the threads of a BLAS would fight for them.
        environment |= {name: os.environ.get(name, "1") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        status = Ranks("demo", WORKER, on_message, screen.text).run(arguments, ranks, environment)
    if status == 0 and not training.complete():
        print("hmc demo: a rank ended without its results", file=sys.stderr)
        status = 1
    if status != 0:
        return status
    screen.report()
    if options.json:
        write_json(training.data(), options.json)
    if picture:
        from hmc.demo.train.picture import draw

        screen.text(draw(training, picture))
    wrong = [text for text, good in training.checks() if not good]
    for text in wrong:
        print(f"FAILED: {text}", file=sys.stderr)
    return 1 if wrong else 0


def _vendors(devices: list[str]) -> set[str]:
    return {device.partition(":")[0] for device in devices}
