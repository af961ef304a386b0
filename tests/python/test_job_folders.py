"""The folder in which the ranks of a job meet: removed though the launcher is killed, and with paths that sockets can have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from commands import HMC, run_hmc

MEETS = "import hmc\nwith hmc.init() as comm:\n    comm.barrier(timeout=30)\n"


def folders(parent: Path) -> set[str]:
    return {path.name for path in parent.glob("hmc-run-*")}


def started(parent: Path) -> subprocess.Popen[str]:
    """A job that runs until it is killed."""
    environment = {**os.environ, "TMPDIR": str(parent)}
    command = [*HMC, "run", "-n", "1", "sh", "-c", "echo started; exec sleep 120"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    assert process.stdout.readline() == "[0] started\n"
    return process


def test_the_next_job_removes_the_folder_of_a_killed_launcher() -> None:
    parent = Path("/tmp", f"hmc-test-{os.getpid()}-{time.monotonic_ns()}")  # a short path
    parent.mkdir()
    try:
        with started(parent) as killed:
            left = folders(parent)
            killed.kill()
        assert len(left) == 1
        empty = f"{next(iter(left)).rpartition('-')[0]}-empty"  # killed before its launcher locked it
        (parent / empty).mkdir()
        with started(parent) as running:
            kept = folders(parent)
            assert len(kept) == 1
            assert not left & kept
            assert run_hmc("run", "-n", "1", "true", environment={"TMPDIR": str(parent)}).returncode == 0
            assert folders(parent) == kept
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 128 + signal.SIGTERM
        assert folders(parent) == set()
    finally:
        shutil.rmtree(parent)


def test_ranks_meet_where_temporary_files_have_long_paths(tmp_path: Path) -> None:
    script, parent = tmp_path / "meets.py", tmp_path / ("long" * 30)
    script.write_text(MEETS)
    parent.mkdir()
    result = run_hmc("run", "-n", "2", str(script), environment={"TMPDIR": str(parent)})
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
