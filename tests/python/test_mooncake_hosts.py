"""Engines of the Mooncake drop-in on two hosts, which two network namespaces stand for."""

from __future__ import annotations

import sys
from pathlib import Path

from hosts import Hosts, wait_all

import hmc

PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
from mooncake.engine import TransferEngine, TransferNotify, Write

me, other, folder, mine, theirs = sys.argv[1:]
SIZE = 3_000_017
seeds = {"alpha": 1, "beta": 2}

def contents(name):
    return np.random.default_rng(seeds[name]).integers(0, 256, SIZE, dtype=np.uint8)

def soon(what):
    end = time.monotonic() + 30
    while not (value := what()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.002)
    return value

engine = TransferEngine()
assert engine.initialize(mine, "P2PHANDSHAKE", "rdma", "") == 0
memory = contents(me)
assert engine.register_memory(memory.ctypes.data, SIZE) == 0
place = Path(folder) / (me + ".tmp")
place.write_text(f"{memory.ctypes.data} {mine}:{engine.get_rpc_port()}")
place.rename(Path(folder) / me)
soon((Path(folder) / other).exists)
there, session = (Path(folder) / other).read_text().split()
there, half = int(there), SIZE // 2
assert engine.get_first_buffer_address(session) == there
# Each writes the other's second half, and nobody reads it there.
notify = TransferNotify("written", me)
assert engine.transfer_sync(session, memory.ctypes.data, there + half, half, Write, notify) == 0
assert [(one.name, one.msg) for one in soon(engine.get_notifies)] == [("written", other)]
assert np.array_equal(memory[half : 2 * half], contents(other)[:half])
assert np.array_equal(memory[:half], contents(me)[:half]) and memory[-1] == contents(me)[-1]
# Nobody writes the last byte: each reads the other's.
assert engine.transfer_sync_read(session, memory.ctypes.data, there + SIZE - 1, 1) == 0
assert memory[0] == contents(other)[-1]
assert engine.transfer_sync(session, memory.ctypes.data, there, 0, Write, TransferNotify("compared")) == 0
soon(engine.get_notifies)
print("equal")
"""


def start(hosts: Hosts, folder: Path, **environment: str) -> list[tuple[int, str]]:
    processes = []
    for here, there in (hosts, hosts[::-1]):
        line = [sys.executable, "-m", "hmc.integrations.mooncake", sys.executable, "-c", PROGRAM]
        processes.append(here.start(*line, here.name, there.name, str(folder), here.address, there.address, **environment))
    return list(wait_all(processes))


def test_engines_on_two_hosts_meet_with_a_key(hosts: Hosts, tmp_path: Path) -> None:
    for status, output in start(hosts, tmp_path, HMC_JOB_KEY=hmc.keygen()):
        assert status == 0, output
        assert output.endswith("equal\n")


def test_without_a_key_the_log_says_what_to_do(hosts: Hosts, tmp_path: Path) -> None:
    for status, output in start(hosts, tmp_path):
        assert status != 0
        assert "HMC_JOB_KEY" in output
