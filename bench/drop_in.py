"""Runs one program on another transfer library and on HMC's drop-in for it, in alternation: what bench/*_drop_in.py share."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def main(program: str, peer: str, package: str, measure: Callable[[], dict[str, float]]) -> None:
    """Alternates the two, and prints.

    ``program``: the file that calls this. ``peer``: the name of the other library. ``package``: of the drop-in, whose
    ``python -m`` runs programs. ``measure``: medians in seconds, by whichever library it imports.
    """
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON", help=f"an interpreter that has {peer}")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()), flush=True)
        os._exit(0)  # NIXL 1.5.1 may crash while the interpreter ends
    command = [str(Path(program).resolve()), "--measure"]
    theirs, ours = [options.peer, *command], [sys.executable, "-m", package, sys.executable, *command]
    before = os.getloadavg()[0]
    rounds = [(_run(theirs), _run(ours)) for _ in range(options.rounds)]
    print(
        f"{os.cpu_count()} cores, load {before:.1f} before and {os.getloadavg()[0]:.1f} after, medians of {options.rounds} rounds"
    )
    table = {}
    for name in rounds[0][0]:
        there, here = (statistics.median(one[side][name] for one in rounds) for side in (0, 1))
        table[name] = {peer.lower(): there, "hmc": here, "ratio": there / here}
        print(f"{name:20} {peer} {there * 1e6:10.1f} us   HMC {here * 1e6:10.1f} us   {peer}/HMC {there / here:6.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1) + "\n")


def _run(command: list[str]) -> dict[str, float]:
    """One round."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd="/", env={**os.environ})
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result
