"""Job: how ranks end, and the environment that they get."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from commands import HMC
from hosts import ROOTLESS

import hmc
from hmc import _job
from hmc._job import Job

REAL_TIME = signal.SIGRTMIN + 1  # without a name in Python


def test_a_real_time_signal_is_reported_by_number() -> None:
    reports: list[str] = []
    job = Job([sys.executable, "-c", f"import os; os.kill(os.getpid(), {REAL_TIME})"], 1, report=reports.append)
    job.start()
    assert job.wait() == 128 + REAL_TIME
    assert reports == [f"rank 0 was killed by signal {REAL_TIME}"]


def test_spawn_reports_a_real_time_signal() -> None:
    with pytest.raises(hmc.RankFailedError, match=f"rank 0 was killed by signal {REAL_TIME}") as raised:
        hmc.spawn(lambda: os.kill(os.getpid(), REAL_TIME), 1, timeout=60)
    assert raised.value.exit_code == -REAL_TIME


def test_a_named_signal_is_reported_by_name() -> None:
    with pytest.raises(hmc.RankFailedError, match="rank 0 was killed by SIGKILL"):
        hmc.spawn(lambda: os.kill(os.getpid(), signal.SIGKILL), 1, timeout=60)


STORE = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


def store_of_ranks(environment: dict[str, str] | None = None) -> dict[str, str | None]:
    """Where the ranks of a job find torch's store."""

    def found() -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in STORE}

    first, second = hmc.spawn(found, 2, timeout=60, environment=environment)
    assert first == second
    return first


@pytest.mark.parametrize("rank", ["RANK", "HMC_RANK"])
def test_a_job_inside_a_job_has_a_store_of_its_own(monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    monkeypatch.setenv(rank, "0")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # torchrun's agent hosts none for this job
    found = store_of_ranks()
    assert found["MASTER_ADDR"] == "127.0.0.1"
    assert int(found["MASTER_PORT"] or 0) > 1
    assert found["TORCHELASTIC_USE_AGENT_STORE"] is None
    assert store_of_ranks({"MASTER_ADDR": "::1", "MASTER_PORT": "2"}) == {**found, "MASTER_ADDR": "::1", "MASTER_PORT": "2"}


def test_the_users_store_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "HMC_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    found = store_of_ranks()
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "29500")


@pytest.mark.parametrize(
    ("rendezvous", "store"),
    [
        ("tcp://10.0.0.1:7000", "10.0.0.1 7001"),
        ("tcp://[fd00::1]:7000", "fd00::1 7001"),
        ("tcp://10.0.0.1:65535", "10.0.0.1 65534"),  # no port is above it
        ("tcp://10.0.0.1:70000", "None None"),  # hmc.init() refuses these
        ("tcp://10.0.0.1", "None None"),
    ],
)
def test_the_store_is_beside_the_rendezvous(monkeypatch: pytest.MonkeyPatch, rendezvous: str, store: str) -> None:
    for name in STORE:
        monkeypatch.delenv(name, raising=False)
    printed: list[str] = []
    script = "import os; print(os.environ.get('MASTER_ADDR'), os.environ.get('MASTER_PORT'))"
    job = Job([sys.executable, "-c", script], 1, rendezvous=rendezvous, output=lambda _, line: printed.append(line))
    job.start()
    assert job.wait() == 0
    assert printed == [store + "\n"]


UNREAD = """
import hmc
with hmc.init(timeout=40) as comm:
    print(comm.rank, len(comm.topology(timeout=30).hosts), flush=True)
    comm.barrier(timeout=30)
"""


def test_ranks_that_cannot_read_the_id_of_their_kernel_are_on_hosts_of_their_own(tmp_path: Path) -> None:
    """Not on one, as any two hosts would be. They meet by the job's Unix socket all the same."""
    script = tmp_path / "job.py"
    script.write_text(UNREAD)
    hidden = 'mount --bind /dev/null /proc/sys/kernel/random/boot_id || exit 77; exec "$@"'
    namespace = ["unshare", *ROOTLESS, "--mount", "sh", "-c", hidden, "sh"]
    try:
        job = subprocess.run(
            [*namespace, *HMC, "run", "-n", "2", sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd="/",
        )
    except FileNotFoundError:
        pytest.skip("no unshare")
    if job.returncode == 77 or "unshare" in job.stderr:
        pytest.skip(job.stderr)
    assert job.returncode == 0, job.stdout + job.stderr
    assert {line.split("] ")[-1] for line in job.stdout.splitlines()} == {"0 2", "1 2"}, job.stdout


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"


def test_an_interrupted_stop_kills_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C, while ranks that ignore SIGTERM get time to end."""
    ready = threading.Semaphore(0)
    job = Job([sys.executable, "-c", STUBBORN], 2, output=lambda _rank, _line: ready.release())
    sleep, interrupts = time.sleep, iter([KeyboardInterrupt])

    def interrupted(seconds: float) -> None:
        for error in interrupts:
            raise error
        sleep(seconds)

    job.start()
    try:
        assert ready.acquire(timeout=60)
        assert ready.acquire(timeout=60)
        monkeypatch.setattr(_job.time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job.stop(60)
        assert job.ended() == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    finally:
        job.stop()
        job.close()


def test_a_job_that_has_ended_holds_no_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    job = Job([sys.executable, "-c", "print(1)"], 3, output=lambda _rank, _line: None)
    job.start()
    assert job.wait() == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_interrupt_while_a_rank_starts_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest may run with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            hmc.spawn(time.sleep, 2, 600, timeout=60)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert [process.returncode is None for process in started] == [False]
