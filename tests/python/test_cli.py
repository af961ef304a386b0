"""The ``hmc`` command as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import run_hmc

import hmc.testing


def test_info_names_every_transport() -> None:
    result = run_hmc("info")
    assert result.returncode == 0, result.stderr
    for name in ("local", "shm", "tcp"):
        assert name in result.stdout


def test_info_says_what_a_device_can_do() -> None:
    result = run_hmc("info", environment=hmc.testing.environment())
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.startswith("  ")}
    assert "simulated; IPC handles, virtual memory, dma-buf" in lines["cuda:0"]
    assert "simulated; IPC handles, dma-buf" in lines["musa:1"]
    assert "simulated; IPC handles)" in lines["hygon:0"]


def test_doctor_checks() -> None:
    result = run_hmc("doctor")
    assert result.returncode in (0, 1), result.stderr
    assert "shared memory" in result.stdout.lower() or "/dev/shm" in result.stdout


@pytest.mark.parametrize(
    ("variable", "value", "finding", "words"),
    [
        ("HMC_TRANSPORTS", "smh", "transfer", "local shm verbs ucx tcp"),
        ("HMC_JOB_KEY", "short", "transfer", "hmc keygen"),
        ("RANK", "0", "launcher", "WORLD_SIZE"),
    ],
)
def test_doctor_finds_settings_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, finding: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    result = run_hmc("doctor", "--json")
    assert result.returncode == 1, result.stderr
    [found] = [row for row in json.loads(result.stdout) if row["level"] == "problem"]
    assert found["name"] == finding
    assert words in found["found"]
    assert run_hmc("info").returncode == 0


def test_doctor_is_content_here() -> None:
    result = run_hmc("doctor", "--json")
    assert result.returncode == 0, result.stdout
    assert {row["name"] for row in json.loads(result.stdout)} >= {"transfer", "launcher", "shared memory", "ptrace"}


def test_keygen_gives_a_fresh_key() -> None:
    first, second = run_hmc("keygen"), run_hmc("keygen")
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
    result = run_hmc("run", "-n", "3", str(script), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for rank in range(3):
        assert f"rank {rank} of 3" in result.stdout


def test_run_starts_a_module(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text("import os, sys\nprint(sys.argv[1:], 'from', os.environ['HMC_RANK'])\n")
    result = run_hmc("run", "-n", "2", "--no-prefix", "-m", "greeter", "-n", "7", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["['-n', '7'] from 0", "['-n', '7'] from 1"]


def test_run_says_which_ranks_it_stopped(tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text("import os, sys, time\nif os.environ['HMC_RANK'] == '1':\n    sys.exit(4)\ntime.sleep(60)\n")
    result = run_hmc("run", "-n", "2", "--grace", "0.5", str(script))
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
    result = run_hmc("run", "-n", "3", str(script), cwd=tmp_path)
    assert result.returncode != 0
    assert "rank 1 exited with status 3" in result.stderr


def test_run_with_simulated_devices(tmp_path: Path) -> None:
    script = tmp_path / "names.py"
    script.write_text("import hmc, sys\nsys.stdout.write(' '.join(hmc.devices()) + '\\n')\n")
    result = run_hmc("run", "-n", "5", "--no-prefix", "--simulate", "musa,rocm", str(script))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 5
    for line in lines:
        assert {"cpu", *(f"{vendor}:{index}" for vendor in ("musa", "rocm") for index in range(3))} <= set(line.split())


def test_bench_of_simulated_devices_says_so(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    arguments = ["--operations", "put", "--sizes", "4K", "--repeat", "1", "--json", str(file), "--simulate", "cuda,mlu"]
    result = run_hmc("bench", *arguments)
    assert result.returncode == 0, result.stderr
    assert "speeds say nothing about any hardware" in result.stdout.replace("\n", " ")
    for point in json.loads(file.read_text()):
        assert point["devices"] == ["cuda:0 (simulated)", "mlu:0 (simulated)"]


def test_bench_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    result = run_hmc(
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
        ["demo", "--simulate", "abacus"],
        ["demo", "--devices", "musa:77"],
        ["bench", "--devices", "musa:77"],
        ["run", "--simulate", "abacus", "script.py"],
        ["run"],
        ["run", "-n", "2", "-m"],
        ["run", "no_such_script.py"],
        ["run", "./no_such_program"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_two(arguments: list[str]) -> None:
    assert run_hmc(*arguments).returncode == 2
