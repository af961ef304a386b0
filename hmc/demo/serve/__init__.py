"""``hmc demo --serve``: prefill on two tensor-parallel ranks, decode with another cache, and an engine that is killed."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hmc.cli.devices import check_transports
from hmc.cli.ranks import Ranks
from hmc.cli.text import paragraph, width, write_json

__all__ = ["run_serving"]

WORKER = Path(__file__).with_name("worker.py")
PROMPTS, QUICK_PROMPTS = [70, 129, 16, 300, 33, 415], [70, 33]  # tokens; none ends with a block of both sides
NOTICED = 1.0  # seconds in which a death must be an error


def run_serving(options: argparse.Namespace) -> int:
    """Starts the engines, prints the table and the checks. Exit status 1 if tokens differ or a process failed."""
    given = [name for name in ("ranks", "tokens", "devices", "simulate", "picture") if getattr(options, name)]
    try:
        if given:
            raise ValueError(f"--serve has engines and prompts of its own, on the CPU, and draws nothing; leave out --{given[0]}")
        check_transports([options.transports])
    except ValueError as error:
        print(f"hmc demo: {error}", file=sys.stderr)
        return 2
    prompts = QUICK_PROMPTS if options.quick else PROMPTS
    said: list[dict[str, Any]] = []
    console = Console(file=sys.stderr if options.json == "-" else sys.stdout, width=width())

    def text(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    def on_message(_rank: int, message: dict[str, Any]) -> None:
        said.append(message)
        if message["hmc-demo"] == "engines":
            _introduce(message, text)

    environment = {"HMC_LOG": os.environ.get("HMC_LOG", "error")}
    # The engines share the machine's cores; the threads of a BLAS would fight for them.
    environment |= {name: os.environ.get(name, "1") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    arguments = [",".join(map(str, prompts)), options.transports]
    status = Ranks("demo", WORKER, on_message, text).run(arguments, 3, environment)
    sessions = [message for message in said if message["hmc-demo"] == "session"]
    losses = [message for message in said if message["hmc-demo"] == "lost"]
    if sessions:
        console.print(_table(sessions), highlight=False)
    checks = _checks(sessions, losses, len(prompts))
    if options.json:
        write_json(
            {"sessions": sessions, "lost": losses, "checks": [{"what": what, "good": good} for what, good in checks]}, options.json
        )
    if status != 0:
        return status
    for what, good in checks:
        text(paragraph(f"{'good' if good else 'FAILED'}: {what}", rest="  "))
    return 0 if all(good for _, good in checks) else 1


def _introduce(engines: dict[str, Any], text: Any) -> None:
    text(
        paragraph(
            "A small model with random weights, in NumPy. Two tensor-parallel ranks compute prompts, a third process decodes; its "
            "cache has other blocks, another order of axes and other elements. Another prefill engine is killed while it computes."
        )
    )
    for name in ("prefill", "decode", "other"):
        for layout in engines[name] if isinstance(engines[name], list) else [engines[name]]:
            text(f"  {name:<8} {layout}")
    text(f"  {'path':<8} {', '.join(dict.fromkeys(engines['paths']))}, CPU memory")


def _table(sessions: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name in ("session", "prompt", "moved by", "ms", "tokens"):
        table.add_column(name, justify="right" if name in ("prompt", "ms") else "left")
    for one in sessions:
        equal = "as one engine's" if one["equal"] else "DIFFERENT"
        table.add_row(one["name"], str(one["prompt"]), one["how"], f"{one['seconds'] * 1e3:.1f}", equal)
    return table


def _checks(sessions: list[dict[str, Any]], losses: list[dict[str, Any]], expected: int) -> list[tuple[str, bool]]:
    found = [
        (
            f"{len(sessions)} of {expected} sessions have the tokens of one engine",
            sum(one["equal"] for one in sessions) == expected,
        ),
        ("with the first block of a session forgotten, its tokens are others", all(one["control"] for one in sessions)),
    ]
    for one in losses:
        when = f"{one['noticed'] * 1e3:.0f} ms after the kill, with {len(one['layers'])} of its layers there"
        noticed = f"{when}: {one['error'] or 'no error'}"
        found.append((noticed, bool(one["error"]) and one["noticed"] < NOTICED))
        found.append(("all blocks of that session were freed", one["freed"]))
        found.append(("decode computed the prompt itself; the tokens are those of one engine", one["equal"]))
    if not losses:
        found.append(("an engine was killed", False))
    return found
