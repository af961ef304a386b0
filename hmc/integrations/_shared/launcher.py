"""Runs a program whose imports of another library find HMC's drop-in: a folder of stand-ins comes first in PYTHONPATH."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["environment", "launch"]


def launch(package: str, arguments: Sequence[str]) -> int:
    """Becomes the program. Returns only where it cannot be started.

    ``package``: whose ``python -m`` this is; its folder ``shims`` has the stand-ins.
    ``arguments``: PROGRAM ARGUMENTS..., or -m MODULE ARGUMENTS....
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(
            f"usage: python -m {package} PROGRAM ARGUMENTS...\n"
            f"       python -m {package} -m MODULE ARGUMENTS...\n\n"
            "PROGRAM: a command, or a file that ends in .py. This Python runs files and modules."
        )
        return 0 if arguments else 2
    ours = arguments[0] == "-m" or arguments[0].endswith(".py")
    command = [sys.executable, *arguments] if ours else list(arguments)
    try:
        os.execvpe(command[0], command, environment(package))
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
    return 127


def environment(package: str) -> dict[str, str]:
    """This process's environment, in which Python looks into the stand-ins first."""
    shims = Path(__file__).parent.parent / package.rpartition(".")[2] / "shims"
    before = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (str(shims), before) if part)}
