"""Which memory each rank of a job uses: devices of this machine, simulated ones, the CPU."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hmc import testing

__all__ = ["SIMULATED", "Place", "check_transports", "find_places", "named_places", "place_ranks", "simulation", "vendor_list"]

#: What stands beside every result of simulated devices.
SIMULATED = (
    "Simulated devices are libraries of HMC in place of a vendor's: the bytes move, within this machine's memory; "
    "speeds say nothing about any hardware."
)


@dataclass(frozen=True)
class Place:
    """A device. ``provenance`` is "hardware", or what stands in for it ("simulated")."""

    name: str
    provenance: str

    @property
    def label(self) -> str:
        """The name, with what it is unless hardware: "musa:0 (simulated)"."""
        return self.name if self.provenance == "hardware" else f"{self.name} ({self.provenance})"


def vendor_list(text: str) -> list[str]:
    """The value of ``--simulate``: vendors that :mod:`hmc.testing` can simulate."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        for name in names:
            testing.library(name)
    except (ValueError, FileNotFoundError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names


def simulation(simulated: Sequence[str], processes: int) -> dict[str, str]:
    """Environment of the processes: two to eight devices of each vendor, so that each process may have its own where they suffice.

    The user's HMC_SIM_DEVICES comes first.
    """
    if not simulated:
        return {}
    environment = testing.environment(*simulated, devices=min(8, max(2, -(-processes // len(simulated)))))
    if os.environ.get("HMC_SIM_DEVICES"):
        del environment["HMC_SIM_DEVICES"]
    return environment


def place_ranks(asked: str, ranks: int, simulated: Sequence[str]) -> list[Place]:
    """One Place per rank, cycling over the devices ``asked`` for (comma-separated).

    Default: the simulated vendors if there are any, else every accelerator, else the CPU; each vendor's first device first.

    Raises:
        ValueError: a device is not there.
    """
    found = find_places(simulation(simulated, ranks))
    if asked:
        chosen = named_places(asked, found)
    else:
        chosen = [place for place in found if ":" in place.name and (not simulated or place.provenance == "simulated")]
        missing = [vendor for vendor in simulated if not any(place.name.startswith(f"{vendor}:") for place in chosen)]
        if missing:
            raise ValueError(f"{', '.join(missing)} simulated, and no device seen; is the vendor's ..._VISIBLE_DEVICES set?")
        chosen.sort(key=lambda place: _order(place.name, simulated))
        chosen = chosen or [place for place in found if ":" not in place.name]
    return [chosen[rank % len(chosen)] for rank in range(ranks)]


def _order(name: str, vendors: Sequence[str]) -> tuple[int, int]:
    vendor, _, index = name.partition(":")
    return int(index), vendors.index(vendor) if vendor in vendors else 0


def named_places(asked: str, found: Sequence[Place]) -> list[Place]:
    """Those of ``found`` that ``asked`` names (comma-separated).

    Raises:
        ValueError: a device is not there.
    """
    known = {place.name: place for place in found}
    names = [name.strip() for name in asked.split(",") if name.strip()]
    absent = [name for name in names if name not in known]
    if absent or not names:
        raise ValueError(
            f"there is no device {', '.join(absent) or repr(asked)}; usable are {', '.join(place.label for place in found)}; "
            "`hmc info` says why others are not"
        )
    return [known[name] for name in names]


def find_places(environment: dict[str, str]) -> list[Place]:
    """Every device of a process with ``environment``; this process opens no vendor's library."""
    return [Place(**fields) for fields in _apart(environment)]


def check_transports(choices: Sequence[str]) -> None:
    """Sees that a Context can be made with each of ``choices`` (as HMC_TRANSPORTS; empty: the default).

    Raises:
        ValueError: why not.
    """
    named = [choice for choice in choices if choice]
    if named and (refused := _apart({}, *named)):
        raise ValueError(refused[0])


def _apart(environment: dict[str, str], *arguments: str) -> list[Any]:
    """What this file prints. In a process of its own: it sees that environment, and takes the vendors' contexts with it."""
    command = [sys.executable, __file__, *arguments]
    both = {**os.environ, **environment}
    # Ctrl-C reaches this process alone, which ends that one.
    result = subprocess.run(
        command, env=both, stdout=subprocess.PIPE, text=True, errors="backslashreplace", check=False, start_new_session=True
    )
    if result.returncode != 0:
        raise ValueError(f"the process that looks for devices ended with status {result.returncode}")
    last = "".join(result.stdout.splitlines()[-1:])  # before it others may print, such as hooks of Python's start
    try:
        answer: list[Any] = json.loads(last)
    except ValueError:
        raise ValueError(f"the process that looks for devices printed {last[:80]!r} in place of a list of them") from None
    return answer


def _tell_devices() -> list[dict[str, str]]:
    import hmc

    every = [device for runtime in hmc.info()["runtimes"] for device in runtime["devices"]]
    return [{"name": device["device"], "provenance": device["provenance"]} for device in every]


def _tell_refused(choices: Sequence[str]) -> list[str]:
    import hmc

    refused = []
    for choice in choices:
        try:
            hmc.Context(transports=choice).close()
        except hmc.HmcError as error:
            refused.append(str(error))
    return refused


def _answer(choices: Sequence[str]) -> None:
    """What the vendors' libraries print goes to standard error; the answer alone to standard output."""
    answers = os.fdopen(os.dup(1), "w")
    with contextlib.suppress(OSError):  # standard error is closed
        os.dup2(2, 1)
    print(json.dumps(_tell_refused(choices) if choices else _tell_devices()), file=answers, flush=True)


if __name__ == "__main__":
    _answer(sys.argv[1:])
