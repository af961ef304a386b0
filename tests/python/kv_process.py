"""Another process with a pool, for the tests of hmc.kv."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from device_arrays import DEVICES, array_on, registrable, transports_of

import hmc
from hmc import kv
from hmc.layout import Layout

TEXT = "L=4 B=64 kv H=4 N=32 D=64 bf16"
OTHER = "L=4 B=32 H=4 N=64 (kv D=64) bf16"
# Of DEVICES the first is the other process's, the second this one's.
PRELUDE = f"""
    import json, sys, time
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import numpy as np
    import hmc
    from device_arrays import DEVICES, array_on, registrable
    from hmc import kv
    from hmc.layout import Layout
    address, text = sys.argv[1:3]
    layout = Layout(text)
    array = np.random.default_rng(7).integers(0, 256, layout.buffer_bytes, dtype=np.uint8)
    array = array_on(array, DEVICES[0] if DEVICES else "cpu")
    ctx = hmc.Context()
    pool = kv.Pool(ctx, registrable([array]), layout)
    peer = ctx.connect(address, timeout=20)
    def say(**what):
        sys.stdout.write(json.dumps(what) + chr(10))  # in one piece: two threads say something
        sys.stdout.flush()
"""


class Process:
    """Another process with a pool, which runs a program and answers in lines of JSON."""

    def __init__(self, ctx: hmc.Context, text: str, program: str, **environment: str) -> None:
        carried = {name: transports_of(value) for name, value in environment.items() if name == "HMC_TRANSPORTS"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(program), ctx.addresses[0], text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",  # not the source tree
            env={**os.environ, **environment, **carried},
        )
        self.peer = ctx.accept(timeout=30)

    def tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the other process ended"
        return json.loads(line)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal. After SIGSTOP no thread of it runs any more."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)


class Mine:
    """A Context with a pool in this process, and the other processes."""

    def __init__(self, **more: Any) -> None:
        if "transports" in more:
            more["transports"] = transports_of(more["transports"])
        self.ctx = hmc.Context(**more)
        self.layout = Layout(TEXT)
        array = np.random.default_rng(3).integers(0, 256, self.layout.buffer_bytes, dtype=np.uint8)
        self.array = array_on(array, DEVICES[-1] if DEVICES else "cpu")
        self.pool = kv.Pool(self.ctx, registrable([self.array]), self.layout)
        self.others: list[Process] = []

    def start(self, text: str, program: str, **environment: str) -> Process:
        self.others.append(Process(self.ctx, text, program, **environment))
        return self.others[-1]


@contextmanager
def this_process(**more: Any) -> Iterator[Mine]:
    mine = Mine(**more)
    try:
        yield mine
    finally:
        for other in mine.others:
            other.close()
        mine.pool.close()
        mine.ctx.close()
