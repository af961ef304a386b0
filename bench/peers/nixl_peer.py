"""NIXL on its UCX backend, two processes. Started by bench/run.py; prints one JSON object per point."""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

BLOCKS, BLOCK = 4096, 16384


def finish(agent: Any, handle: Any) -> None:
    """Posts a prepared transfer and polls it to its end."""
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        raise RuntimeError(f"transfer ended as {state}")


def await_notification(agent: Any, name: str) -> None:
    """Polls until one notification of `name` has come."""
    while not agent.get_new_notifs().get(name):
        pass


def side(rank: int, pipe: Connection, repeat: int, sizes: list[int]) -> None:
    """One of the two agents, on a core of its own. Without NIXL's progress thread, which would compete for that core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    agent = nixl_agent(f"rank{rank}", nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
    memory = np.full(max(*sizes, 2 * BLOCKS * BLOCK), rank + 1, np.uint8)
    base = memory.ctypes.data
    agent.register_memory([(base, memory.nbytes, 0, "")], "DRAM")
    pipe.send((agent.get_agent_metadata(), base))
    metadata, there = pipe.recv()
    other = agent.add_remote_agent(metadata)
    other = other.decode() if isinstance(other, bytes) else other

    def prepare(local: list[tuple[int, int]], remote: list[tuple[int, int]], note: bytes = b"") -> Any:
        here = agent.get_xfer_descs([(base + at, size, 0) for at, size in local], "DRAM")
        far = agent.get_xfer_descs([(there + at, size, 0) for at, size in remote], "DRAM")
        return agent.initialize_xfer("WRITE", here, far, other, note)

    def report(operation: str, size: int, samples: list[float]) -> None:
        if rank == 0:
            print(json.dumps({"operation": operation, "bytes": size, "seconds": statistics.median(samples[1:])}), flush=True)

    def meet() -> None:
        pipe.send("here")
        pipe.recv()

    handle = prepare([(0, 8)], [(64, 8)], b"note")
    samples = []
    for _ in range(repeat + 1):
        meet()
        start = time.perf_counter()
        for _ in range(200):
            if rank == 0:
                finish(agent, handle)
            await_notification(agent, other)
            if rank == 1:
                finish(agent, handle)
        samples.append((time.perf_counter() - start) / 400)
    report("put+notify", 8, samples)
    meet()
    if rank == 0:
        for size in sizes:
            samples = []
            handle = prepare([(0, size)], [(0, size)])
            for _ in range(repeat + 1):
                calls = max(1, min(500, (64 << 20) // size))
                start = time.perf_counter()
                for _ in range(calls):
                    finish(agent, handle)
                samples.append((time.perf_counter() - start) / calls)
            report("put", size, samples)
        order = np.random.default_rng(7)
        here = order.permutation(2 * BLOCKS)[:BLOCKS] * BLOCK
        far = order.permutation(2 * BLOCKS)[:BLOCKS] * BLOCK
        samples = []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            finish(agent, prepare([(int(at), BLOCK) for at in here], [(int(at), BLOCK) for at in far]))
            samples.append(time.perf_counter() - start)
        report(f"blocks {BLOCKS}x{BLOCK}", BLOCKS * BLOCK, samples)
    meet()


def main() -> None:
    """Both processes."""
    repeat, sizes = int(sys.argv[1]), [size for size in json.loads(sys.argv[2]) if size > 8]
    context = multiprocessing.get_context("fork")
    left, right = context.Pipe()
    child = context.Process(target=side, args=(1, right, repeat, sizes))
    child.start()
    side(0, left, repeat, sizes)
    child.join(60)


if __name__ == "__main__":
    main()
