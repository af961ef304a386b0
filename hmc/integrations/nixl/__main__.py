"""``python -m hmc.integrations.nixl PROGRAM ARGUMENTS...``, or ``-m MODULE``: runs a program whose ``import nixl`` finds HMC."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

SHIMS = Path(__file__).parent / "shims"


def environment() -> dict[str, str]:
    """This process's environment, in which Python looks into the shims first."""
    before = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (str(SHIMS), before) if part)}


def main(arguments: Sequence[str]) -> int:
    """Becomes the program. Returns only where it cannot be started."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(
            "usage: python -m hmc.integrations.nixl PROGRAM ARGUMENTS...\n"
            "       python -m hmc.integrations.nixl -m MODULE ARGUMENTS...\n\n"
            "PROGRAM: a command, or a file that ends in .py. This Python runs files and modules."
        )
        return 0 if arguments else 2
    ours = arguments[0] == "-m" or arguments[0].endswith(".py")
    command = [sys.executable, *arguments] if ours else list(arguments)
    try:
        os.execvpe(command[0], command, environment())
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
