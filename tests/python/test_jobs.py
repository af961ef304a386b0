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
