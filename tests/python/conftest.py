"""Helpers of the Python tests: real processes, awkward sizes, data that is never constant."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import HMC
from hosts import Hosts, TwoHosts, Unavailable
from kv_sides import connected
from patterns import pattern
from weights_lab import Lab

import hmc
import hmc.testing
from hmc.weights import _cells as weights_cells


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    two = TwoHosts()
    try:
        both = two.__enter__()
    except Unavailable as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    try:
        yield both
    finally:
        two.close()


def finished(command: list[str], *, timeout: float, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command, ended. One that does not end in time fails the test, with all that it printed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=env)
    except subprocess.TimeoutExpired as late:
        printed = b"".join(text for text in (late.stdout, late.stderr) if isinstance(text, bytes))
        pytest.fail(f"{late}:\n{printed.decode(errors='replace')}", pytrace=False)


@pytest.fixture
def run_job(tmp_path: Path) -> Callable[..., str]:
    """Runs a script as a job of N processes by `hmc run`, in a new folder. A failure fails the test, with all the output."""

    def run(source: str, ranks: int = 2, timeout: float = 60, expect: int = 0, environment: dict[str, str] | None = None) -> str:
        script = tmp_path / "job.py"
        prelude = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom patterns import pattern\n"
        prelude += f"import faulthandler; faulthandler.enable(); faulthandler.dump_traceback_later({0.9 * timeout})\n"
        # What runs in the background of a shell is started with Ctrl-C ignored, and hands that on.
        prelude += "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        script.write_text(prelude + "import numpy as np\nimport hmc\n" + textwrap.dedent(source))
        # Where a rank is to fail, the others have the time of the job to end by themselves, not the five seconds of a user's job.
        grace = ["--grace", str(timeout)] if expect else []
        command = [*HMC, "run", "-n", str(ranks), *grace, str(script)]
        result = finished(command, timeout=timeout, cwd=tmp_path, env={**os.environ, **(environment or {})})
        assert (result.returncode == 0) == (expect == 0), result.stdout + result.stderr
        return result.stdout

    return run


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., str]:
    """Runs a script in a new folder, with these variables (None: unset). A failure fails the test, with all the output."""

    def run(source: str, environment: dict[str, str | None]) -> str:
        script = tmp_path / "script.py"
        prelude = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        prelude += "import faulthandler; faulthandler.enable(); faulthandler.dump_traceback_later(54)\n"
        script.write_text(prelude + "import numpy as np\nimport hmc\nfrom patterns import pattern\n" + textwrap.dedent(source))
        merged = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
        result = finished([sys.executable, str(script)], timeout=60, cwd=tmp_path, env=merged)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


def read_only(size: int) -> Any:
    array = pattern(size, 4)
    array.flags.writeable = False
    return array


@dataclass
class Pair:
    """Two Contexts that know each other, with a buffer each that the other has imported."""

    a: hmc.Context
    b: hmc.Context
    ab: hmc.Peer
    ba: hmc.Peer
    local: hmc.ConnBuffer
    target: hmc.ConnBuffer
    remote: hmc.RemoteBuffer

    def check(self) -> None:
        """One- and two-sided, every byte."""
        self.local.numpy()[:] = pattern(len(self.local), 1)
        self.ab.put(self.local, self.remote, notify=9).wait(20)
        self.ba.wait_notify(9, timeout=20)
        assert np.array_equal(self.target.numpy(), pattern(len(self.local), 1))
        got = np.zeros(70_000, np.uint8)
        receiving = self.ab.irecv(got, tag=5)
        self.ba.send(pattern(70_000, 2), tag=5, timeout=20)
        receiving.wait(20)
        assert np.array_equal(got, pattern(70_000, 2))


@pytest.fixture(params=["shm", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with hmc.Context(transports=request.param) as a, hmc.Context(transports=request.param) as b:
        ab = a.connect(b.addresses[0], timeout=20)
        ba = b.accept(timeout=20)
        local, target = a.buffer(20_000), b.buffer(20_000)
        both = Pair(a, b, ab, ba, local, target, ab.import_buffer(target.descriptor(), timeout=20))
        yield both
        both.check()


@pytest.fixture
def kv_pair() -> Iterator[Any]:
    """Makes two sides with a pool each: both sides, the peer that the second sees, the peer that the first sees."""
    with contextlib.ExitStack() as open_sides:
        yield lambda *layouts, **more: open_sides.enter_context(connected(*layouts, **more))


@pytest.fixture(params=[("shm", False), ("shm", True), ("tcp", False)], ids=["shm", "shm-mapped", "tcp"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    transports, mapped = request.param
    with contextlib.ExitStack() as end:
        ctx = end.enter_context(hmc.Context(transports=transports, heartbeat=60))
        yield Lab(ctx, transports, end, mapped)


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of 64 KiB: a pull of the model takes some dozens."""
    monkeypatch.setattr(weights_cells, "TASK_BYTES", 1 << 16)
