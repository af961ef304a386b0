"""The hmc command and Python as processes that tests start. Such processes import this too: it brings nothing that takes long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hmc
import hmc.testing

SCRIPT = Path(sys.executable).with_name("hmc")
# Where the package is on PYTHONPATH and not installed, what the script would run. Not with -m, which looks into the working
# directory first: that may be a source tree that is not built.
HMC = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, str(Path(hmc.__file__).with_name("__main__.py"))]


def run_hmc(
    *arguments: str, cwd: Path | None = None, timeout: float = 120, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished `hmc` command with its output."""
    return subprocess.run(
        [*HMC, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(environment or {})},
    )


def run_alone(source: str, **environment: str) -> str:
    """Runs a script in its own process, with simulated devices of every vendor."""
    prelude = "import numpy as np\nimport hmc\n"
    every = {**os.environ, **hmc.testing.environment(), **environment}
    # "-c" looks for modules in the working directory first: not the source tree, whose hmc/ has no extension.
    result = subprocess.run(
        [sys.executable, "-c", prelude + source], capture_output=True, text=True, timeout=60, env=every, cwd="/"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def alive(pid: int) -> bool:
    """Whether a process runs, or is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
