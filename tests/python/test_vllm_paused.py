"""The prefill side of the vLLM connector in another process, which is paused for longer than its leases last and then goes on."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_sides import SOURCE, Half, wait_for

from hmc import kv
from hmc.integrations.vllm._fetcher import Fetcher
from hmc.integrations.vllm._loading import Fetch
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source
from hmc.integrations.vllm._receiver import Receiver

TOKENS = 100
TARGET = [5, 6, 7, 8]

# Its engine overwrites the blocks of a request as soon as it may.
PREFILL = f"""
    import ctypes, json, select, sys, time
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from vllm_sides import SOURCE, Half, chunk
    from hmc.integrations.vllm._lender import Lender
    from hmc.integrations.vllm._sender import Sender
    mode, seconds, credits = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    half = Half(32, 1, listen="tcp://127.0.0.1:0")
    if mode == "pull":
        lender = Lender(half.ctx, half.pools, "engine", "", seconds)
        lender.keep("r", SOURCE, {TOKENS})
    else:
        lender = Sender(half.ctx, half.pools, "engine", "", seconds, credits)
        lender.begin([chunk({TOKENS}, {TOKENS}, name="r")])
        for layer in range(3):
            lender.saved(layer)
        lender.end()
        lender.keep("request r", "r")
    def say(**what):
        print(json.dumps(what), flush=True)
    say(port=next(int(text.rsplit(":", 1)[1]) for text in half.ctx.addresses if text.startswith("tcp")))
    while True:
        for request in lender.finished():
            for arrays in half.arrays:
                for array in arrays:
                    array.reshape(32, -1)[SOURCE] = -2.0
            say(free=request)
        if select.select([sys.stdin], [], [], 0.005)[0]:
            pause = json.loads(sys.stdin.readline())
            ctypes.PyDLL(None).usleep(int(pause * 1e6))  # no other thread of Python runs meanwhile
"""


class Prefill:
    """The other process, and what it computes."""

    def __init__(self, mode: str, seconds: float, credits: int = 4) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PREFILL), mode, str(seconds), str(credits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd="/",  # not the source tree
        )
        self.remote = Remote("engine", "r", "127.0.0.1", self.read()["port"])

    def read(self, seconds: float = 60.0) -> Any:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], seconds)[0], "it says nothing"
        line = self.process.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def keep_interpreter(self, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)


class Decode:
    """The decode side, here."""

    def __init__(self, mode: str) -> None:
        self.half = Half(32, 2, access="rw")
        self.expected = _expected()
        kind = Fetcher if mode == "pull" else Receiver
        self.loading: Any = kind(
            self.half.ctx, self.half.pools, lambda remote: [Source(remote.address(0, 0))], "", timeout=60, renew=0.2
        )

    def fetch(self, remote: Remote) -> None:
        self.loading.fetch(Fetch("local", remote, TARGET, 0, TOKENS))

    def ended(self) -> tuple[set[str], set[int]]:
        found: tuple[set[str], set[int]] = wait_for(lambda: any(found := self.loading.finished()) and found)
        return found

    def is_right(self) -> bool:
        found = self.half.tokens(TARGET, 0, TOKENS)
        return all(np.array_equal(one, wanted) for one, wanted in zip(found, self.expected, strict=True))

    def close(self) -> None:
        self.loading.close()
        self.half.close()


def _expected() -> list[Any]:
    half = Half(32, 1)
    try:
        return half.tokens(SOURCE, 0, TOKENS)
    finally:
        half.close()


@pytest.fixture
def ends() -> Iterator[list[Any]]:
    """What is closed at the end, the last one first."""
    found: list[Any] = []
    yield found
    for one in reversed(found):
        one.close()


def sides(ends: list[Any], mode: str, seconds: float, credits: int = 4) -> tuple[Prefill, Decode]:
    ends.append(decode := Decode(mode))
    ends.append(prefill := Prefill(mode, seconds, credits))
    return prefill, decode


@pytest.mark.parametrize("how", ["stopped", "one thread keeps the interpreter"])
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_request_outlives_a_pause_of_its_engine(ends: list[Any], mode: str, how: str) -> None:
    prefill, decode = sides(ends, mode, 3.0)
    decode.loading.renew([prefill.remote])
    time.sleep(0.3)
    if how == "stopped":
        prefill.stop()
    else:
        prefill.keep_interpreter(6.0)
    until = time.monotonic() + 6.0
    while time.monotonic() < until:  # of a request that waits for blocks of the decode engine
        decode.loading.renew([prefill.remote])
        time.sleep(0.2)
    prefill.go_on()
    time.sleep(0.5)
    decode.fetch(prefill.remote)
    assert decode.ended() == ({"local"}, set())
    assert decode.is_right()
    assert prefill.read() == {"free": "r" if mode == "pull" else "request r"}


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_request_without_a_reader_expires_after_a_pause(ends: list[Any], mode: str) -> None:
    prefill, decode = sides(ends, mode, 1.0)
    prefill.stop()
    time.sleep(1.5)
    prefill.go_on()
    assert prefill.read() == {"free": "r" if mode == "pull" else "request r"}
    decode.fetch(prefill.remote)
    assert decode.ended() == ({"local"}, set(TARGET))


@pytest.mark.parametrize(("at", "credits"), [("tickets", 4), ("credit", 1), ("end", 4)])
def test_a_push_outlives_a_pause_of_its_engine(ends: list[Any], at: str, credits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped while it waits for the reader, whose answer it gets later."""
    owner, name = (Receiver, "_piece") if at == "tickets" else (kv.Inbox, "_check_layers")
    real, stopped, answer = getattr(owner, name), threading.Event(), threading.Event()

    def late(*arguments: Any) -> Any:
        if not stopped.is_set():
            prefill.stop()
            stopped.set()
        assert answer.wait(60)
        return real(*arguments)

    monkeypatch.setattr(owner, name, late)
    prefill, decode = sides(ends, "push", 1.0, credits)
    decode.fetch(prefill.remote)
    assert stopped.wait(60)
    time.sleep(2.5)
    prefill.go_on()
    time.sleep(0.1)
    answer.set()
    assert decode.ended() == ({"local"}, set())
    assert decode.is_right()
    assert prefill.read() == {"free": "request r"}


def test_blocks_that_a_paused_push_may_write_are_not_returned(ends: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, decode = sides(ends, "push", 1.0)
    real, stopped = kv.Inbox._check_layers, threading.Event()

    def stop(*arguments: Any) -> Any:
        if not stopped.is_set():
            prefill.stop()
            stopped.set()
        return real(*arguments)

    monkeypatch.setattr(kv.Inbox, "_check_layers", stop)
    decode.fetch(prefill.remote)
    assert stopped.wait(60)
    decode.loading.cancel("local")
    for _ in range(100):
        ended = decode.loading.finished()
        assert ended == (set(), set())
        time.sleep(0.02)
    prefill.go_on()
    assert decode.ended() == ({"local"}, set(TARGET))
    for arrays in decode.half.arrays:
        for array in arrays:
            array[:] = 3.0
    assert prefill.read() == {"free": "request r"}
    time.sleep(0.3)
    assert all((array == 3.0).all() for arrays in decode.half.arrays for array in arrays)
