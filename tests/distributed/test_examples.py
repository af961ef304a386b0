"""The examples of examples/torch, started as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hmc

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"
SCRIPT = Path(sys.executable).with_name("hmc")
HMC = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, str(Path(hmc.__file__).with_name("__main__.py"))]
# What each prints, and what its figure must be below.
SAYS = {
    "ddp.py": (r"loss ([0-9.]+) on 2 x cpu", 0.8),
    "fsdp2.py": (r"loss ([0-9.]+); this rank holds 2112 of 4224 parameters", 0.9),
    "pipeline.py": (r"step 9: loss ([0-9.]+)", 1.19),
    "tensor_parallel.py": (r"2 ranks, 32 of 64 rows each; error ([0-9.e-]+)", 1e-4),
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


def run(name: str, *options: str) -> str:
    command = [*HMC, "run", *options, str(EXAMPLES / name)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name: str) -> None:
    assert f"hmc run -n 2 examples/torch/{name}" in (EXAMPLES / name).read_text().splitlines()[0]
    out = run(name, "-n", "2")
    pattern, limit = SAYS[name]
    found = re.search(pattern, out)
    assert found, out
    assert float(found[1]) < limit, out


@pytest.mark.timeout(360)
def test_ranks_take_equal_steps_however_many_they_are() -> None:
    losses = [re.findall(r"loss ([0-9.]+)", run("ddp.py", "-n", str(ranks))) for ranks in (1, 2, 4)]
    assert losses == [losses[0]] * 3
    assert len(losses[0]) == 1
