"""Agents of the NIXL drop-in on two hosts, which two network namespaces stand for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hosts import Hosts, wait_all

import hmc

PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

me, other, folder, way, address = sys.argv[1:]
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

agent = nixl_agent(me, nixl_agent_config(enable_listen_thread=way == "port", listen_port=8888))
memory = contents(me)
agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
place = Path(folder) / (me + ".tmp")
place.write_bytes(memory.ctypes.data.to_bytes(8, "little") + agent.get_agent_metadata())
place.rename(Path(folder) / me)
soon((Path(folder) / other).exists)
told = (Path(folder) / other).read_bytes()
if way == "bytes":
    assert agent.add_remote_agent(told[8:]) == other.encode()
else:
    agent.fetch_remote_metadata(other, address, 8888)
    soon(lambda: agent.check_remote_metadata(other))
there = int.from_bytes(told[:8], "little")
half = SIZE // 2
near = agent.get_xfer_descs([(memory.ctypes.data, half, 0)], "DRAM")
far = agent.get_xfer_descs([(there + half, half, 0)], "DRAM")  # each writes the other's second half, and nobody reads it there
handle = agent.initialize_xfer("WRITE", near, far, other, b"written")
agent.transfer(handle)
got = []

def notified(message):
    got.extend((name, one) for name, some in agent.get_new_notifs().items() for one in some)
    return (other, message) in got

soon(lambda: notified(b"written"))
soon(lambda: agent.check_xfer_state(handle) == "DONE")
assert np.array_equal(memory[half : 2 * half], contents(other)[:half])
assert np.array_equal(memory[:half], contents(me)[:half]) and memory[-1] == contents(me)[-1]
agent.send_notif(other, b"compared")
soon(lambda: notified(b"compared"))
assert got == [(other, b"written"), (other, b"compared")]
print("equal")
"""


@pytest.mark.parametrize("way", ["bytes", "port"])
def test_agents_on_two_hosts_meet_with_a_key(hosts: Hosts, tmp_path: Path, way: str) -> None:
    key = hmc.keygen()
    processes = []
    for here, there in (hosts, hosts[::-1]):
        line = [sys.executable, "-m", "hmc.integrations.nixl", sys.executable, "-c", PROGRAM]
        processes.append(here.start(*line, here.name, there.name, str(tmp_path), way, there.address, HMC_JOB_KEY=key))
    for status, output in wait_all(processes):
        assert status == 0, output
        assert output.endswith("equal\n")


def test_without_a_key_the_error_says_what_to_do(hosts: Hosts, tmp_path: Path) -> None:
    processes = [
        here.start(
            *[sys.executable, "-m", "hmc.integrations.nixl", sys.executable, "-c", PROGRAM],
            *[here.name, there.name, str(tmp_path), "bytes", there.address],
        )
        for here, there in (hosts, hosts[::-1])
    ]
    for status, output in wait_all(processes):
        assert status != 0
        assert "nixlRemoteDisconnectError" in output
        assert "HMC_JOB_KEY" in output
