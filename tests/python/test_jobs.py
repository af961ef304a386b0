"""Job: how ranks end, and the environment that they get."""

from __future__ import annotations

import os
import signal
import sys

import pytest

import hmc
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
