"""The Mooncake drop-in against Mooncake itself on its tcp protocol: one program, two processes of this host, in alternation.

Usage: python bench/mooncake_drop_in.py [--rounds N] [--peer PYTHON] [--json FILE]
PYTHON: an interpreter that has Mooncake, such as the package mooncake-transfer-engine-non-cuda (default: this one). Prints medians
of the rounds, their ratio, and the load of the machine.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import Any

import drop_in

BLOCKS, BLOCK, REPEAT = 4096, 16384, 7
CALL = 256  # blocks of a call: Mooncake's tcp refuses thousands
SMALL = 100  # transfers of one block in a sample


def engine_with_memory(seed: int) -> tuple[Any, Any]:
    import numpy as np
    from mooncake.engine import TransferEngine  # type: ignore[import-not-found, unused-ignore]

    engine = TransferEngine()
    memory = np.random.default_rng(seed).integers(0, 256, 2 * BLOCKS * BLOCK, dtype=np.uint8)
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") or engine.register_memory(memory.ctypes.data, memory.nbytes):
        raise RuntimeError("no engine")
    return engine, memory


def served(pipe: Any) -> None:
    """The other process: has memory."""
    engine, memory = engine_with_memory(1)
    pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", memory.ctypes.data))
    pipe.recv()


def measure() -> dict[str, float]:
    """Medians in seconds, in this process, of whichever Mooncake it imports."""
    import numpy as np

    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=served, args=(theirs,), daemon=True)
    process.start()
    engine, memory = engine_with_memory(2)
    session, there = pipe.recv()
    here, order = memory.ctypes.data, np.random.default_rng(7)

    def scattered(base: int) -> list[int]:
        return (base + order.permutation(2 * BLOCKS)[:BLOCKS] * BLOCK).tolist()

    local, remote, lengths = scattered(here), scattered(there), [BLOCK] * CALL
    whole = BLOCKS * BLOCK
    found: dict[str, list[float]] = {}

    def blocks(call: Any) -> Any:
        def run(session: str) -> int:
            codes = [call(session, local[at : at + CALL], remote[at : at + CALL], lengths) for at in range(0, BLOCKS, CALL)]
            return int(any(codes))

        return run

    def timed(name: str, call: Any, *arguments: Any, count: int = 1) -> None:
        start = time.perf_counter()
        for _ in range(count):
            if call(session, *arguments) != 0:
                raise RuntimeError(f"{name} failed")
        found.setdefault(name, []).append((time.perf_counter() - start) / count)

    for _ in range(REPEAT + 1):
        timed(f"write {BLOCKS}x{BLOCK}", blocks(engine.batch_transfer_sync_write))
        timed(f"read {BLOCKS}x{BLOCK}", blocks(engine.batch_transfer_sync_read))
        timed(f"write 1x{whole}", engine.transfer_sync_write, here, there, whole)
        timed(f"read 1x{whole}", engine.transfer_sync_read, here, there, whole)
        timed(f"write 1x{BLOCK}", engine.transfer_sync_write, here, there, BLOCK, count=SMALL)
        timed("write 1x8", engine.transfer_sync_write, here, there, 8, count=SMALL)
    pipe.send("end")
    process.join(20)
    return {name: statistics.median(samples[1:]) for name, samples in found.items()}


if __name__ == "__main__":
    drop_in.main(__file__, "Mooncake", "hmc.integrations.mooncake", measure)
