"""A program written for Mooncake's TransferEngine: a process writes blocks into another one. Nothing in it names HMC.

Start it with: python -m hmc.integrations.mooncake examples/python/mooncake_pair.py
"""

import multiprocessing
import time
from typing import Any

import numpy as np
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

BLOCK, BLOCKS = 16384, 256


def engine_with(cache: Any) -> tuple[Any, str]:
    """An engine in which an array is registered, and its name."""
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("the engine cannot be initialized: the log says why")
    if engine.register_memory(cache.ctypes.data, cache.nbytes) != 0:
        raise RuntimeError("the cache cannot be registered")
    return engine, f"127.0.0.1:{engine.get_rpc_port()}"


def decode(pipe: Any) -> None:
    cache = np.zeros(BLOCK * BLOCKS, dtype=np.uint8)
    engine, name = engine_with(cache)
    pipe.send((name, cache.ctypes.data))
    while not engine.get_notifies():  # until the other process has written
        time.sleep(0.001)
    expected = np.random.default_rng(1).integers(0, 256, BLOCK * BLOCKS, dtype=np.uint8).reshape(BLOCKS, BLOCK)
    expected[1::2] = 0
    pipe.send(np.array_equal(cache.reshape(BLOCKS, BLOCK), expected))


def main() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=decode, args=(theirs,))
    process.start()

    cache = np.random.default_rng(1).integers(0, 256, BLOCK * BLOCKS, dtype=np.uint8)
    engine, _ = engine_with(cache)
    target, address = pipe.recv()
    offsets = [block * BLOCK for block in range(0, BLOCKS, 2)]
    code = engine.batch_transfer_sync(
        target,
        [cache.ctypes.data + offset for offset in offsets],
        [address + offset for offset in offsets],
        [BLOCK] * len(offsets),
        TransferOpcode.Write,
        TransferNotify("request 1", "written"),
    )
    assert code == 0
    assert pipe.recv()
    process.join()
    print("done:", len(offsets), "blocks of", BLOCK, "bytes")


if __name__ == "__main__":
    main()
