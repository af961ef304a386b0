"""Jobs whose output is not taken: the reader leaves, or pauses. No rank blocks in a write, and no line is lost."""

from __future__ import annotations

import io
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from commands import HMC, alive

import hmc
from hmc import _job
from hmc._job import Job

# More than a pipe holds, without end.
ENDLESS = """
import os, pathlib, sys
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
while True:
    print("x" * 200)
"""


def waited(job: Job, timeout: float = 60) -> list[Any]:
    """What wait() returned or raised, within the deadline."""
    found: list[Any] = []

    def wait() -> None:
        try:
            found.append(job.wait())
        except Exception as error:
            found.append(error)

    job.start()
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(timeout)
    if waiter.is_alive():
        job.stop()
        pytest.fail("wait() has not returned")
    return found


def test_a_job_whose_output_raises_ends() -> None:
    def refuse(rank: int, line: str) -> None:
        raise BrokenPipeError("nobody reads this")

    job = Job([sys.executable, "-c", "while True: print('x' * 200)"], 2, output=refuse)
    (error,) = waited(job)
    assert isinstance(error, BrokenPipeError)
    assert len(job.ended()) == 2


def test_a_reader_that_leaves_ends_the_job(tmp_path: Path) -> None:
    script, pid = tmp_path / "endless.py", tmp_path / "pid"
    script.write_text(ENDLESS)
    command = [*HMC, "run", "-n", "1", str(script), str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b"[0] xxx")
            process.stdout.close()
            assert process.wait(60) == 1
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert not alive(int(pid.read_text()))


class Leaving(io.StringIO):
    """A standard output that raises on ranks' lines."""

    def write(self, text: str) -> int:
        if text.startswith("[0]"):
            raise BrokenPipeError("nobody reads this")
        return super().write(text)


def print_for_ever() -> None:
    while True:
        print("x" * 200)


def test_spawn_raises_what_its_output_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Leaving())
    with pytest.raises(BrokenPipeError):
        hmc.spawn(print_for_ever, 1, timeout=60)


def test_a_rank_that_failed_is_reported_before_its_output() -> None:
    refused = threading.Event()

    def refuse(rank: int, line: str) -> None:
        assert refused.wait(60)  # until the rank has ended
        raise BrokenPipeError("nobody reads this")

    job = Job([sys.executable, "-c", "print('x'); raise SystemExit(5)"], 1, output=refuse, report=lambda _: refused.set())
    assert waited(job) == [5]


def test_spawn_prints_nothing_without_a_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert hmc.spawn(lambda: print("x") or 5, 1, timeout=60) == [5]


def test_a_reader_that_pauses_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    going, paused, heard = threading.Event(), threading.Event(), []

    def slow(rank: int, line: str) -> None:
        paused.set()
        assert going.wait(60)
        heard.append(line)

    # Once the rank has ended, an hour passes at each look.
    now = time.monotonic()
    looks = iter(range(1 << 30))
    polls = threading.Semaphore(0)

    class Clock:
        sleep = staticmethod(time.sleep)
        monotonic = staticmethod(lambda: now + 3600 * next(looks))

    class Poll:
        def __init__(self) -> None:
            self._poll = select.poll()
            self.register = self._poll.register

        def poll(self, timeout: int) -> Any:
            polls.release()
            return self._poll.poll(timeout)

    class Select:
        POLLIN, POLLHUP, poll = select.POLLIN, select.POLLHUP, Poll

    monkeypatch.setattr(_job, "time", Clock)
    monkeypatch.setattr(_job, "select", Select)
    job = Job([sys.executable, "-c", "for number in range(5): print(number)"], 1, output=slow)
    job.start()
    closing = threading.Thread(target=job.wait, daemon=True)
    closing.start()
    try:
        assert paused.wait(60)
        for _ in range(4):
            while not polls.acquire(timeout=0.05):
                assert closing.is_alive(), "close() returned"
    finally:
        going.set()
    closing.join(60)
    assert not closing.is_alive()
    assert heard == [f"{number}\n" for number in range(5)]
