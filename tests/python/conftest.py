"""Helpers of the Python tests: real processes, awkward sizes, data that is never constant."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

HMC = str(Path(sys.executable).with_name("hmc"))


def pattern(size: int, seed: int) -> NDArray[np.uint8]:
    """Bytes that differ from page to page and from seed to seed."""
    return np.random.Generator(np.random.SFC64([seed, size])).integers(0, 256, size, dtype=np.uint8)


@pytest.fixture
def run_job(tmp_path: Path) -> Callable[..., str]:
    """Runs a script as a job of N processes by `hmc run`; fails the test with everything they printed."""

    def run(source: str, ranks: int = 2, timeout: float = 60, expect: int = 0, environment: dict[str, str] | None = None) -> str:
        import os

        script = tmp_path / "job.py"
        prelude = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom conftest import pattern\n"
        script.write_text(prelude + "import numpy as np\nimport hmc\n" + textwrap.dedent(source))
        result = subprocess.run(
            [HMC, "run", "-n", str(ranks), str(script)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(environment or {})},
        )
        assert (result.returncode == 0) == (expect == 0), result.stdout + result.stderr
        return result.stdout

    return run
