"""A program written for NIXL: a process reads blocks from another one. Nothing in it names HMC.

Start it with: python -m hmc.integrations.nixl examples/python/nixl_pair.py
"""

import multiprocessing
import time
from typing import Any

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

BLOCK, BLOCKS = 16384, 256


def registered(agent: Any, array: Any) -> Any:
    """Registers an array; returns its blocks as descriptors."""
    agent.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM")
    rows = [(array.ctypes.data + at * BLOCK, BLOCK, 0) for at in range(BLOCKS)]
    return agent.get_xfer_descs(rows, "DRAM")


def prefill(pipe: Any) -> None:
    agent = nixl_agent("prefill", nixl_agent_config())
    cache = np.random.default_rng(1).integers(0, 256, BLOCK * BLOCKS, dtype=np.uint8)
    blocks = registered(agent, cache)
    pipe.send((agent.get_agent_metadata(), agent.get_serialized_descs(blocks)))
    while not agent.get_new_notifs():  # until the other process has read
        time.sleep(0.001)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=prefill, args=(theirs,))
    process.start()

    agent = nixl_agent("decode", nixl_agent_config())
    cache = np.zeros(BLOCK * BLOCKS, dtype=np.uint8)
    blocks = registered(agent, cache)
    metadata, remote_blocks = pipe.recv()
    name = agent.add_remote_agent(metadata)

    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", blocks)
    remote = agent.prep_xfer_dlist(name, agent.deserialize_descs(remote_blocks))
    wanted = list(range(0, BLOCKS, 2))
    handle = agent.make_prepped_xfer("READ", local, wanted, remote, wanted, b"I have read it")
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    assert state == "DONE"
    agent.release_xfer_handle(handle)

    process.join()
    expected = np.random.default_rng(1).integers(0, 256, BLOCK * BLOCKS, dtype=np.uint8).reshape(BLOCKS, BLOCK)
    expected[1::2] = 0
    assert np.array_equal(cache.reshape(BLOCKS, BLOCK), expected)
    print("done:", len(wanted), "blocks of", BLOCK, "bytes")


if __name__ == "__main__":
    main()
