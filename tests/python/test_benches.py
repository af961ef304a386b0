"""Benches run: at their smallest, with a figure for each of their cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("script", "arguments", "least"),
    [
        ("serving.py", ["--tokens", "64", "--repeat", "1"], 60),
        ("weights.py", ["--receivers", "1", "--repeat", "1"], 8),
        ("crowded.py", ["--busy", "0", "1", "--seconds", "0.05"], 6),
    ],
)
def test_a_bench_gives_figures(script: str, arguments: list[str], least: int, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(BENCH / script), *arguments, "--json", str(figures)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(result.stdout.splitlines()) >= least
    assert json.loads(figures.read_text())
