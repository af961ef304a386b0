"""``hmc plan``: how a collective would be carried out, and how long it should take, without a job."""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import TYPE_CHECKING, Any

from hmc._exports import FORMATS
from hmc.cli.cards import CARDS
from hmc.cli.text import write_json

if TYPE_CHECKING:
    import hmc

__all__ = ["island_list", "rate", "rate_list", "run_plan", "seconds"]

RANKS, BANDWIDTH, REDUCTION = 8, 50e9, 10e9
# Options that a plan over islands does not take.
FLAT = ("ranks", "bandwidth", "injection", "reduction", "algorithm", "exact", "export")

_RATES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _amount(text: str, units: dict[str, float], what: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text.strip())
    value = float(match[1]) * units[match[2]] if match and match[2] in units else math.inf
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def rate(text: str) -> float:
    """Bytes per second of "50G" (powers of 1000)."""
    value = _amount(text, _RATES, 'a rate in bytes per second, such as "50G"')
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: it is 0")
    return value


def rate_list(text: str) -> list[float]:
    """Rates of "1G,2G,4G"."""
    return [rate(one) for one in text.split(",")]


def seconds(text: str) -> float:
    """Seconds of "5us"."""
    return _amount(text, _TIMES, 'a time, such as "5us"')


def island_list(text: str) -> list[tuple[int, str]]:
    """Numbers and models of "8xH200,8xMI325X"."""
    found = []
    for one in text.split(","):
        match = re.fullmatch(r"(\d{1,8})x(\w+)", one.strip())
        if not match or int(match[1]) == 0:
            raise argparse.ArgumentTypeError(f"{one!r} is not a number of cards, such as 8xH200")
        model = next((name for name in CARDS if name.lower() == match[2].lower()), "")
        if not model:
            raise argparse.ArgumentTypeError(f"{match[2]!r} is not in the table of cards; there are {', '.join(CARDS)}")
        found.append((int(match[1]), model))
    return found


def _island(count: int, model: str) -> hmc.IslandCards:
    import hmc

    card = CARDS[model]
    return hmc.IslandCards(
        f"{count}x{model}",
        count,
        inside=card.inside,
        nic=card.nic,
        memory=card.memory,
        per_host=min(count, card.per_host),
    )


def _flat_data(plan: hmc.CollectivePlan) -> dict[str, Any]:
    fields = ("call", "bytes", "ranks", "algorithm", "reason", "seconds", "lower_bound", "figures")
    data = {name: getattr(plan, name) for name in fields}
    data["algorithms"] = list(plan.algorithms)
    data["runner_up"] = dict(zip(("algorithm", "seconds"), plan.runner_up, strict=True)) if plan.runner_up else None
    data["links"] = [{"source": link.source, "target": link.target, "bytes": link.bytes} for link in plan.links]
    return data


def _island_data(plan: hmc.IslandPlan) -> dict[str, Any]:
    fields = ("call", "bytes", "cards", "algorithm", "seconds", "lower_bound", "busiest", "even_seconds")
    data = {name: getattr(plan, name) for name in fields}
    data["runner_up"] = dict(zip(("algorithm", "seconds"), plan.runner_up, strict=True))
    parts = ("name", "cards", "share", "inside_seconds", "between_seconds", "memory_seconds")
    data["islands"] = [{name: getattr(island, name) for name in parts} for island in plan.islands]
    return data


def run_plan(options: argparse.Namespace) -> int:
    """Prints a plan, or writes it as JSON. Exit status 2 for wrong usage."""
    import hmc

    try:
        if options.islands:
            data, text = _plan_islands(options)
        else:
            data, text = _plan_flat(options)
    except (hmc.HmcError, ImportError, OSError, ValueError) as error:
        print(f"hmc plan: {error}", file=sys.stderr)
        return 2
    if options.json:
        write_json(data, options.json)
    if options.json != "-":
        print(text.rstrip("\n"))
    return 0


def _bytes(options: argparse.Namespace) -> int:
    if options.bytes is None:
        return 0 if options.call == "barrier" else 1 << 30
    return int(options.bytes)


def _plan_flat(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    import hmc

    if options.border or options.even:
        raise ValueError("--border and --even belong to --islands")
    if options.export and options.export[0] not in FORMATS:
        raise ValueError(f"--export {options.export[0]}: pass one of {', '.join(FORMATS)}, then a path")
    plan = hmc.plan_collective(
        options.call,
        _bytes(options),
        options.ranks or RANKS,
        latency=options.latency,
        bandwidth=options.bandwidth or BANDWIDTH,
        injection=options.injection or 0.0,  # that of a link
        reduction=options.reduction or REDUCTION,
        algorithm=options.algorithm,
        exact=options.exact,
    )
    if options.export:
        plan.export(*options.export)
    return _flat_data(plan), str(plan)


def _plan_islands(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    import hmc

    given = [name for name in FLAT if getattr(options, name)]
    if given:
        raise ValueError(
            f"--islands takes cards and their links from its table; leave out {', '.join(f'--{name}' for name in given)}"
        )
    islands = [_island(count, model) for count, model in options.islands]
    plan = hmc.plan_islands(_bytes(options), islands, call=options.call, border=options.border, nic_latency=options.latency)
    text = str(plan)
    if options.even:
        hierarchical = plan.seconds if plan.algorithm == "hierarchical" else plan.runner_up[1]
        text += f"even split: {plan.even_seconds:.3g} s, {plan.even_seconds / hierarchical:.2f} times the split by bandwidth\n"
    return _island_data(plan), text
