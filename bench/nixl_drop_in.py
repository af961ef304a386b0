"""The NIXL drop-in against NIXL itself on its UCX backend: one program, two processes of this host, in alternation.

Usage: python bench/nixl_drop_in.py [--rounds N] [--peer PYTHON] [--json FILE]
PYTHON: an interpreter that has NIXL (default: this one). Prints medians of the rounds, their ratio, and the load of the machine.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import Any

import drop_in

BLOCKS, BLOCK, REPEAT = 4096, 16384, 7


def served(pipe: Any) -> None:
    """The other process: has memory, and looks for notifications now and then."""
    import numpy as np
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("served", nixl_agent_config())
    memory = np.random.default_rng(1).integers(0, 256, 2 * BLOCKS * BLOCK, dtype=np.uint8)
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    while not pipe.poll(0.005):
        agent.get_new_notifs()


def measure() -> dict[str, float]:
    """Medians in seconds, in this process, of whichever NIXL it imports."""
    import numpy as np
    from nixl._api import nixl_agent, nixl_agent_config

    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=served, args=(theirs,), daemon=True)
    process.start()
    agent = nixl_agent("asks", nixl_agent_config())
    memory = np.random.default_rng(2).integers(0, 256, 2 * BLOCKS * BLOCK, dtype=np.uint8)
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    metadata, there = pipe.recv()
    name = agent.add_remote_agent(metadata)
    order = np.random.default_rng(7)

    def scattered(base: int) -> Any:
        at = order.permutation(2 * BLOCKS)[:BLOCKS].astype(np.int64) * BLOCK
        return np.stack([base + at, np.full(BLOCKS, BLOCK), np.zeros(BLOCKS, np.int64)], axis=1)

    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", scattered(memory.ctypes.data), "DRAM")
    remote = agent.prep_xfer_dlist(name, scattered(there), "DRAM")
    chosen = np.arange(BLOCKS, dtype=np.int32)

    def finish(handle: Any) -> None:
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer ended as {state}")

    found: dict[str, list[float]] = {}
    for _ in range(REPEAT + 1):
        for way in ("WRITE", "READ"):
            start = time.perf_counter()
            handle = agent.make_prepped_xfer(way, local, chosen, remote, chosen, b"done")
            made = time.perf_counter()
            finish(handle)
            found.setdefault(f"{way} {BLOCKS}x{BLOCK}", []).append(time.perf_counter() - made)
            found.setdefault("make_prepped_xfer", []).append(made - start)
            agent.release_xfer_handle(handle)
    small = agent.make_prepped_xfer("WRITE", local, [0], remote, [0])
    start = time.perf_counter()
    for _ in range(200):
        finish(small)
    found[f"WRITE 1x{BLOCK}"] = [0.0, (time.perf_counter() - start) / 200]
    pipe.send("end")
    process.join(20)
    return {name: statistics.median(samples[1:]) for name, samples in found.items()}


if __name__ == "__main__":
    drop_in.main(__file__, "NIXL", "hmc.integrations.nixl", measure)
