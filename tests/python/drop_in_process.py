"""Another process that runs a drop-in for another library, and evaluates what a test asks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np

SIZE = 1 << 22
# Behind a program that makes its objects: says `first`, then evaluates each line. Names are those of the program, until, os, time.
_SERVE = """
import json, os, sys, time

def until(what, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.001)
    return value

names = dict(globals())
print(json.dumps(first), flush=True)
for line in sys.stdin:
    try:
        print(json.dumps({"value": eval(json.loads(line), names)}), flush=True)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
"""


def contents(seed: int, size: int = SIZE) -> Any:
    """Bytes that differ from seed to seed."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


class Process:
    """A program under a drop-in's launcher. It has ``memory``, an array of bytes, and ``first``, which ``self.first`` is."""

    def __init__(self, package: str, program: str, arguments: list[str], environment: dict[str, str], end: str = "") -> None:
        source = textwrap.dedent(program) + _SERVE + end
        self.process = subprocess.Popen(
            [sys.executable, "-m", package, sys.executable, "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",  # not the source tree
            env={**os.environ, **environment},
        )
        self.first = self._read()

    def ask(self, expression: str) -> Any:
        """The value of an expression there."""
        self.start(expression)
        return self.answer()

    def start(self, expression: str) -> None:
        """Asks; ``answer`` waits for the value."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(expression) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        told = self._read()
        if "error" in told:
            raise AssertionError(told["error"])
        return told["value"]

    def memory(self) -> Any:
        """All of its memory as it is now."""
        return np.frombuffer(bytes.fromhex(self.ask("memory.tobytes().hex()")), np.uint8)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal. After SIGKILL it has ended, after SIGSTOP it is stopped."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(20)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def stop(self) -> None:
        """Stops it; kill(SIGCONT) lets it go on."""
        self.kill(signal.SIGSTOP)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the other process ended"
        return json.loads(line)
