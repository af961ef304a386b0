"""The code of the tutorials runs, as the tutorials say to run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
RANKS = {"first_transfer.py": 2, "all_to_all.py": 4, "arrays_and_buffers.py": 0, "asyncio_pair.py": 0}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RANKS)


@pytest.mark.parametrize("name", sorted(RANKS))
def test_example(name: str) -> None:
    script = str(EXAMPLES / name)
    ranks = RANKS[name]
    hmc = str(Path(sys.executable).with_name("hmc"))
    command = [hmc, "run", "-n", str(ranks), script] if ranks else [sys.executable, script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("done") == max(1, ranks)
