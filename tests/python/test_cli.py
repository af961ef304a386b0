"""The ``hmc`` command as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HMC = Path(sys.executable).with_name("hmc")


def run(*arguments: str, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """The finished command with its output."""
    return subprocess.run([str(HMC), *arguments], cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


def test_info_names_every_transport() -> None:
    result = run("info")
    assert result.returncode == 0, result.stderr
    for name in ("local", "shm", "tcp"):
        assert name in result.stdout


def test_doctor_checks() -> None:
    result = run("doctor")
    assert result.returncode in (0, 1), result.stderr
    assert "shared memory" in result.stdout.lower() or "/dev/shm" in result.stdout


@pytest.mark.parametrize(
    ("variable", "value", "finding", "words"),
    [
        ("HMC_TRANSPORTS", "smh", "transfer", "local shm tcp"),
        ("HMC_JOB_KEY", "short", "transfer", "hmc keygen"),
        ("RANK", "0", "launcher", "WORLD_SIZE"),
    ],
)
def test_doctor_finds_settings_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, finding: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    result = run("doctor", "--json")
    assert result.returncode == 1, result.stderr
    [found] = [row for row in json.loads(result.stdout) if row["level"] == "problem"]
    assert found["name"] == finding
    assert words in found["found"]
    assert run("info").returncode == 0


def test_doctor_is_content_here() -> None:
    result = run("doctor", "--json")
    assert result.returncode == 0, result.stdout
    assert {row["name"] for row in json.loads(result.stdout)} >= {"transfer", "launcher", "shared memory", "ptrace"}


def test_keygen_gives_a_fresh_key() -> None:
    first, second = run("keygen"), run("keygen")
    assert first.returncode == second.returncode == 0
    assert first.stdout != second.stdout
    assert len(first.stdout.strip()) >= 32


def test_run_starts_every_rank(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import hmc, sys\n"
        "with hmc.init() as comm:\n"
        "    comm.barrier(timeout=30)\n"
        "    sys.stdout.write(f'rank {comm.rank} of {comm.size}\\n')\n"
    )
    result = run("run", "-n", "3", str(script), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for rank in range(3):
        assert f"rank {rank} of 3" in result.stdout


def test_run_starts_a_module(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text("import os, sys\nprint(sys.argv[1:], 'from', os.environ['HMC_RANK'])\n")
    result = run("run", "-n", "2", "--no-prefix", "-m", "greeter", "-n", "7", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["['-n', '7'] from 0", "['-n', '7'] from 1"]


def test_run_says_which_ranks_it_stopped(tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text("import os, sys, time\nif os.environ['HMC_RANK'] == '1':\n    sys.exit(4)\ntime.sleep(60)\n")
    result = run("run", "-n", "2", "--grace", "0.5", str(script))
    assert result.returncode == 4
    assert result.stderr.splitlines() == [
        "hmc run: rank 1 exited with status 4",
        "hmc run: rank 0 had not ended 0.5 s later and was stopped",
    ]


def test_run_reports_the_rank_that_failed(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import hmc, sys\n"
        "comm = hmc.init()\n"
        "comm.barrier(timeout=30)\n"
        "if comm.rank == 1:\n"
        "    sys.exit(3)\n"
        "comm.barrier(timeout=30)\n"
    )
    result = run("run", "-n", "3", str(script), cwd=tmp_path)
    assert result.returncode != 0
    assert "rank 1 exited with status 3" in result.stderr


@pytest.mark.parametrize("transports", ["", "tcp"], ids=["default", "tcp"])
def test_demo_checks_every_byte(tmp_path: Path, transports: str) -> None:
    arguments = ["demo", "--quick", *(["--transports", transports] if transports else [])]
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "checks passed" in result.stdout
    assert any(tmp_path.glob("*.png")) or any(tmp_path.glob("*.svg")) or "matplotlib" in result.stdout


def test_bench_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    result = run(
        "bench",
        "--sizes",
        "8,64K",
        "--repeat",
        "1",
        "--operations",
        "send,put,get,blocks",
        "--blocks",
        "64x4K",
        "--json",
        str(file),
    )
    assert result.returncode == 0, result.stderr
    operations = {point["hmc-bench"] for point in json.loads(file.read_text())}
    assert {"raw flag", "memcpy", "send", "put", "get", "put+notify", "blocks 64x4096"} <= operations


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "--operations", "fly"],
        ["bench", "--sizes", "many"],
        ["bench", "--ranks", "3"],
        ["bench", "--plot", "drawing.txt"],
        ["demo", "--picture", "/no/such/folder/x.png"],
        ["demo", "--json", "/no/such/folder/x.json"],
        ["run"],
        ["run", "-n", "2", "-m"],
        ["run", "no_such_script.py"],
        ["run", "./no_such_program"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_two(arguments: list[str]) -> None:
    assert run(*arguments).returncode == 2
