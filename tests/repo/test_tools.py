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


def test_the_ptx_is_what_the_script_writes(tmp_path: Path) -> None:
    # This nvcc writes the first lines alone, and this ptxas accepts everything.
    tools = tmp_path / "bin"
    tools.mkdir()
    nvcc = 'until [ "$1" = -o ]; do shift; done\nprintf "//\\n.version 9.0\\n.target sm_75\\n\\n" >"$2"'
    for name, body in (("nvcc", nvcc), ("ptxas", "exit 0")):
        (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tools / name).chmod(0o755)
    written = tmp_path / "ptx"
    subprocess.run(
        [ROOT / "tools" / "make_ptx.sh", written],
        timeout=60,
        check=True,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )
    tracked = ROOT / "cpp" / "src" / "device" / "kernels" / "ptx"
    assert {path.name for path in written.iterdir()} == {path.name for path in tracked.iterdir()}
    for path in written.iterdir():
        version, target = path.read_text().splitlines()
        with (tracked / path.name).open() as text:
            assert [version, target] == [next(text).rstrip("\n"), next(text).rstrip("\n")], path.name
