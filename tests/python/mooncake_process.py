"""Another process with an engine of the Mooncake drop-in, which evaluates what a test asks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np

from hmc.integrations.mooncake.engine import TransferEngine

SIZE = 1 << 22
SERVER = """
    import json, os, sys, time
    import numpy as np
    from mooncake.engine import Read, TransferEngine, TransferNotify, TransferOpcode, Write
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    memory = np.random.default_rng(7).integers(0, 256, int(sys.argv[1]), dtype=np.uint8)
    address = memory.ctypes.data
    assert engine.register_memory(address, memory.nbytes) == 0
    def until(what, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = what()
            if value:
                return value
            time.sleep(0.001)
        return value
    names = dict(globals())
    print(json.dumps([address, engine.get_rpc_port()]), flush=True)
    for line in sys.stdin:
        try:
            print(json.dumps({"value": eval(json.loads(line), names)}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    os._exit(0)
"""


def contents(seed: int, size: int = SIZE) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def free_port() -> int:
    """Below those that the kernel gives to outgoing connections, so that it stays free between two processes of a test."""
    while True:
        port = random.randrange(20000, 32000, 4)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Other:
    """The other process. Its memory is contents(7, size)."""

    def __init__(self, size: int = SIZE, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hmc.integrations.mooncake", sys.executable, "-c", textwrap.dedent(SERVER), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",  # not the source tree
            env={**os.environ, **environment},
        )
        self.address, self.port = self._read()
        self.session = f"127.0.0.1:{self.port}"

    def ask(self, expression: str) -> Any:
        """The value of an expression there: names are engine, memory, address, until, np, os, time."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(expression) + "\n")
        self.process.stdin.flush()
        told = self._read()
        if "error" in told:
            raise AssertionError(told["error"])
        return told["value"]

    def memory(self) -> Any:
        """All of its memory as it is now."""
        return np.frombuffer(bytes.fromhex(self.ask("memory.tobytes().hex()")), np.uint8)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(20)

    def stop(self) -> None:
        """Stops it, and returns once it is stopped; kill(SIGCONT) lets it go on."""
        self.kill(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the other process ended"
        return json.loads(line)


class Mine:
    """This process's engine with registered memory, and the other processes."""

    def __init__(self) -> None:
        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.memory = contents(3)
        self.address = int(self.memory.ctypes.data)
        self.others: list[Other] = []
        assert self.engine.register_memory(self.address, SIZE) == 0

    def start(self, **more: Any) -> Other:
        other = Other(**more)
        self.others.append(other)
        return other


@contextlib.contextmanager
def this_process() -> Iterator[Mine]:
    mine = Mine()
    try:
        yield mine
    finally:
        for other in mine.others:
            other.close()
        mine.engine.unregister_memory(mine.address)
