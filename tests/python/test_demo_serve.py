"""`hmc demo --serve`: tokens are those of one engine, an engine's death is an error, and other tokens are found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import alive, run_hmc

QUICK = ["demo", "--serve", "--quick"]


@pytest.mark.parametrize("transports", ["", "tcp"])
def test_tokens_are_those_of_one_engine(tmp_path: Path, transports: str) -> None:
    (tmp_path / "hmc-demo.png").mkdir()  # it draws nothing, so the default picture is not looked at
    # A busy machine may take longer than a second to end a killed process and to run the one that waits for it.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if 'HMC_RANK' not in os.environ:\n"  # the command, which checks
        "    import hmc.demo.serve\n"
        "    hmc.demo.serve.NOTICED = 30.0\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = [*QUICK, "--transports", transports, "--json", "serve.json"]
    result = run_hmc(*arguments, cwd=tmp_path, environment={"PYTHONPATH": path})
    assert result.returncode == 0, result.stdout + result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    found = json.loads((tmp_path / "serve.json").read_text())
    assert [one["how"] for one in found["sessions"]] == ["pull", "push by layers"]
    assert all(one["equal"] and one["control"] and len(set(one["tokens"])) > 3 for one in found["sessions"])
    [lost] = found["lost"]
    assert "signal 9" in lost["error"]
    assert lost["freed"]
    assert lost["equal"]
    assert lost["layers"] == [0]
    assert all(check["good"] for check in found["checks"])
    assert result.stdout.count("good: ") == len(found["checks"]) == 5


def test_every_engine_takes_the_transports_that_were_asked_for(tmp_path: Path) -> None:
    # With those of the environment the engine that is killed would not reach the others.
    arguments = [*QUICK, "--transports", "tcp", "--json", "serve.json"]
    result = run_hmc(*arguments, cwd=tmp_path, environment={"HMC_TRANSPORTS": "shm"})
    assert "rank 2" not in result.stderr
    [lost] = json.loads((tmp_path / "serve.json").read_text())["lost"]
    assert "signal 9" in lost["error"]


def test_other_tokens_are_found(tmp_path: Path) -> None:
    # One of the prefill ranks computes otherwise.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('HMC_RANK') == '1':\n"
        "    import numpy as np\n"
        "    true = np.exp\n"
        "    np.exp = lambda x: true(1.3 * x)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = run_hmc(*QUICK, cwd=tmp_path, environment={"PYTHONPATH": path})
    assert result.returncode == 1, result.stdout + result.stderr
    assert "DIFFERENT" in result.stdout
    assert "FAILED: " in result.stdout


@pytest.mark.parametrize("more", [["--ranks", "2"], ["--devices", "cpu"], ["--simulate", "cuda"]], ids=lambda more: more[0])
def test_what_it_does_not_take(tmp_path: Path, more: list[str]) -> None:
    result = run_hmc(*QUICK, *more, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"leave out {more[0]}" in result.stderr


def _other_engine(launcher: int) -> int | None:
    """The prefill engine that the decode process of a demo has started."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if b"worker.py\0other\0" in (entry / "cmdline").read_bytes() and f"DEMO={launcher}".encode() in (
                entry / "environ"
            ).read_bytes().split(b"\0"):
                return int(entry.name)
    return None


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_an_engine_ends_with_a_killed_decode_process(tmp_path: Path) -> None:
    # The engine stops before it does anything: it cannot end by itself.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\nif 'other' in sys.orig_argv:\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "DEMO": str(os.getpid())}
    command = [sys.executable, "-m", "hmc", *QUICK]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as demo:
        while (other := _other_engine(os.getpid())) is None:
            assert demo.poll() is None
        os.kill(_parent(other), signal.SIGKILL)
        assert "killed by SIGKILL" in demo.communicate(timeout=60)[1]
        assert demo.returncode == 1
    until = time.monotonic() + 20
    while alive(other):
        if time.monotonic() > until:
            os.kill(other, signal.SIGKILL)
            pytest.fail("the engine lives on")
        time.sleep(0.01)
