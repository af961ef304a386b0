"""Another process with an engine of the Mooncake drop-in, which evaluates what a test asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from drop_in_process import SIZE, Process, contents

from hmc.integrations.mooncake.engine import TransferEngine

PROGRAM = """
    import sys
    import numpy as np
    from mooncake.engine import Read, TransferEngine, TransferNotify, TransferOpcode, Write
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    memory = np.random.default_rng(7).integers(0, 256, int(sys.argv[1]), dtype=np.uint8)
    address = memory.ctypes.data
    assert engine.register_memory(address, memory.nbytes) == 0
    first = [address, engine.get_rpc_port()]
"""


class Other(Process):
    """The other process. Its memory is contents(7, size). Names there are engine, memory, address, until, np, os, time."""

    def __init__(self, size: int = SIZE, **environment: str) -> None:
        super().__init__("hmc.integrations.mooncake", PROGRAM, [str(size)], environment, end="os._exit(0)\n")
        self.address, self.port = self.first
        self.session = f"127.0.0.1:{self.port}"


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
