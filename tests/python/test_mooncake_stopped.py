"""Engines of the Mooncake drop-in that are stopped, and hosts that refuse what an engine requires."""

from __future__ import annotations

import errno
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mooncake_process import SIZE, contents, this_process

import hmc
from hmc.integrations._shared import memory
from hmc.integrations.mooncake import _endpoint
from hmc.integrations.mooncake._transfer import TIMED_OUT, Transfer
from hmc.integrations.mooncake._types import TransferOpcode
from hmc.integrations.mooncake.engine import TransferEngine


def test_a_stopped_engine_is_an_error_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "1")
    monkeypatch.setenv("HMC_TRANSPORTS", "tcp")
    with this_process() as mine:
        other = mine.start()
        with monkeypatch.context() as patch:
            patch.setattr(mine.engine, "_seconds", 30.0)
            assert mine.engine.transfer_sync_write(other.session, mine.address, other.address, SIZE) == 0
        other.stop()  # for ever: only the timeout ends a transfer
        assert mine.engine.transfer_sync_write(other.session, mine.address, other.address, SIZE) == -1
        number = mine.engine.transfer_submit_write(other.session, mine.address, other.address, SIZE)
        while (state := mine.engine.transfer_check_status(number)) == 0:
            time.sleep(0.01)
        assert state == -2
        mine.engine._seconds = 30.0
        other.kill(signal.SIGCONT)
        assert other.ask("1") == 1
        assert mine.engine.send_probe(other.session) == 0
        assert mine.engine.transfer_sync_write(other.session, mine.address, other.address, SIZE) == 0
        assert np.array_equal(other.memory(), mine.memory)


class Unfinished:
    """A Work that does not end."""

    done = False

    def __init__(self, stops: bool) -> None:
        self._stops = stops

    def _withdraw(self) -> bool:
        return self._stops

    def wait(self, timeout: float) -> None:
        raise hmc.HmcTimeoutError(f"{timeout} s")


LATE_READ = "may still be written into the memory here: keep that until unregister_memory() has returned 0"
LATE_WRITE = "may still be written at the engine"


@pytest.mark.parametrize("way", ["wait", "state"])
@pytest.mark.parametrize(
    ("opcode", "stops", "words"),
    [
        (TransferOpcode.Read, [False], LATE_READ),
        (TransferOpcode.Read, [True, False], LATE_READ),
        (TransferOpcode.Read, [True, True], "in time; MC_TRANSFER_TIMEOUT"),
        (TransferOpcode.Write, [False], LATE_WRITE),
    ],
)
def test_a_timeout_says_what_may_still_be_written(
    caplog: pytest.LogCaptureFixture, way: str, opcode: TransferOpcode, stops: list[bool], words: str
) -> None:
    session: Any = SimpleNamespace(name="h:1")
    transfer = Transfer(session, 0.0)
    works: list[Any] = [Unfinished(each) for each in stops]
    transfer._works, transfer._opcode = works, opcode
    assert getattr(transfer, way)() == TIMED_OUT
    (record,) = caplog.records
    assert words in record.getMessage()


def test_memory_beside_a_stopped_engine_is_unregistered_once_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer that timed out may still access it: until then each call says so, and the last one that it is safe."""
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "1")
    monkeypatch.setenv("HMC_TRANSPORTS", "tcp")
    monkeypatch.setattr(memory, "_CLOSE_SECONDS", 0.5)
    with this_process() as mine:
        other = mine.start()
        read, engine = np.zeros(SIZE, np.uint8), mine.engine
        address = read.ctypes.data
        assert engine.register_memory(address, SIZE) == 0
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_seconds", 30.0)
            assert engine.transfer_sync_read(other.session, address, other.address, SIZE) == 0
        other.stop()
        for transfer in (engine.transfer_sync_read, engine.transfer_sync_write):
            assert transfer(other.session, address, other.address, SIZE) == -1
        assert engine.batch_unregister_memory([address, address]) == -1
        for _ in range(2):
            assert engine.unregister_memory(address) == -1
        assert engine.register_memory(address, SIZE) == 0
        assert engine.unregister_memory(address) == -1
        monkeypatch.setattr(memory, "_CLOSE_SECONDS", 30)
        engine._seconds = 30.0
        other.kill(signal.SIGCONT)
        assert engine.unregister_memory(address) == 0
        read[:] = contents(5)
        assert other.ask("1") == 1
        assert engine.transfer_sync_write(other.session, mine.address, other.address, SIZE) == 0
        assert np.array_equal(read, contents(5))
        assert engine.unregister_memory(address) == -3


@pytest.mark.parametrize("name", ["hardlink_to", "unlink", "glob"])
def test_errors_of_the_system_are_codes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with this_process() as mine:
        other = mine.start()

        def fails(*_: Any, **__: Any) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        engine = TransferEngine()
        with monkeypatch.context() as full:
            full.setattr(Path, name, fails)
            if name == "glob":
                assert mine.engine.transfer_sync_write(other.session, mine.address, other.address, 5) == -1
            else:
                assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
        assert mine.engine.transfer_sync_write(other.session, mine.address, other.address, 5) == 0
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0


def test_an_engine_without_a_descriptor_left_is_not_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(_endpoint.socket, "socket", fails)
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
