"""One card of ``hmc topo``: joins the others, and tells its parent the topology and its own paths as a JSON line."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import hmc
from hmc.cli.ranks import run_worker


def main() -> None:
    """``sys.argv``: the device of every rank."""
    device = sys.argv[1 + int(os.environ["HMC_RANK"])]
    with hmc.init(devices=[device], name=device) as comm:
        topology = comm.topology(timeout=60)
        paths = [_row(comm.local[0].path(rank)) for rank in range(comm.size)]
        print(json.dumps({"hmc-topo": {"topology": str(topology), "paths": paths}}), flush=True)
        comm.barrier(timeout=60)


def _row(path: hmc.Path) -> dict[str, Any]:
    fields = (
        "transport",
        "source",
        "target",
        "direct",
        "detail",
        "reason",
        "runner_up",
        "messages",
        "rejected",
        "latency_us",
        "bandwidth",
        "hardware_bandwidth",
    )
    return {name: getattr(path, name) for name in fields}


if __name__ == "__main__":
    run_worker(main)
