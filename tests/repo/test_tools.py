"""The scripts of tools/: whole as far as the shell can say, and what the one for GPU machines offers without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU_MACHINE = str(ROOT / "tools" / "gpu_machine.sh")


def gpu_machine(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OUT": str(out)}
    return subprocess.run([GPU_MACHINE, *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize("script", sorted([*(ROOT / "tools").glob("*.sh"), ROOT / ".ci" / "run"]), ids=lambda path: path.name)
def test_the_shell_can_read_it(script: Path) -> None:
    result = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert os.access(script, os.X_OK)


def test_the_steps_on_a_gpu_machine(tmp_path: Path) -> None:
    listed = gpu_machine("--list", out=tmp_path)
    assert listed.returncode == 0, listed.stderr
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names == ["build", "ctest", "python", "asan", "facade", "demo", "bench", "raw", "nccl"]
    assert set(re.findall(r"^step_(\w+)\(\)", Path(GPU_MACHINE).read_text(), re.MULTILINE)) == set(names)
    assert not list(tmp_path.iterdir()), "nothing is done"
    usage = gpu_machine("--help", out=tmp_path)
    assert usage.returncode == 0
    for option in ("--wheels", "--googletest", "--hip", "--list"):
        assert option in usage.stdout


@pytest.mark.parametrize(
    "arguments", [["fly"], ["--wheels", "/no/such/folder"], ["--googletest"], ["--hip", "/no/such"], ["--list-all"]], ids=" ".join
)
def test_wrong_usage_is_status_two(tmp_path: Path, arguments: list[str]) -> None:
    result = gpu_machine(*arguments, out=tmp_path)
    assert result.returncode == 2
    assert "usage:" in result.stderr
    assert not list(tmp_path.iterdir())
