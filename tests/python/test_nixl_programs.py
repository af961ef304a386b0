"""Programs that import NIXL by its names, agents that find each other by a port, and memory of simulated vendors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nixl_process import SIZE, Mine, Other, contents, this_process
from ports import free_port

import hmc
import hmc.testing
from hmc.integrations._shared.inbox import Receiver
from hmc.integrations.nixl import _agent_base, nixl_agent, nixl_agent_config
from hmc.integrations.nixl import _bindings as nixl
from hmc.integrations.nixl._memory import LocalMemory


def run_program(source: str, *launcher: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hmc.integrations.nixl", *launcher, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("name", ["nixl", "nixl_cu12", "nixl_cu13", "nixl_rocm"])
def test_programs_import_every_name(name: str) -> None:
    source = f"""
        import importlib.util
        assert importlib.util.find_spec("{name}") is not None
        from {name}._api import nixl_agent, nixl_agent_config, nixl_xfer_handle, nixlBind
        import {name}, {name}._bindings, {name}._utils
        from {name}._bindings import nixlXferTelemetry, nixlNotFoundError
        from {name}.logging import get_logger
        assert {name}.nixl_agent is nixl_agent and nixlBind is {name}._bindings
        assert {name}.DEFAULT_COMM_PORT == 8888 and nixlXferTelemetry().totalBytes == 0
        address = {name}._utils.malloc_passthru(100)
        {name}._utils.ba_buf(address, 100)
        {name}._utils.verify_transfer(address, address + 50, 50)
        {name}._utils.free_passthru(address)
        import hmc
        print(nixl_agent.__module__)
    """
    done = run_program(source, sys.executable)
    assert (done.returncode, done.stdout) == (0, "hmc.integrations.nixl._api\n"), done.stderr


def test_the_launcher_starts_scripts_with_their_arguments_and_path(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    script = tmp_path / "program.py"
    script.write_text("import sys, nixl, beside\nprint(sys.argv[1:], beside.VALUE, nixl.nixl_agent.__name__)\nsys.exit(7)\n")
    done = subprocess.run(
        [sys.executable, "-m", "hmc.integrations.nixl", str(script), "a b", "--c"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert (done.returncode, done.stdout) == (7, "['a b', '--c'] 5 nixl_agent\n"), done.stderr


def test_the_launcher_starts_modules(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import sys, nixl\nprint(sys.argv[1:], nixl.nixl_agent.__name__)\n")
    done = subprocess.run(
        [sys.executable, "-m", "hmc.integrations.nixl", "-m", "module", "--c"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "['--c'] nixl_agent\n"), done.stderr


def test_a_program_that_is_not_there_is_named() -> None:
    done = run_program("", "/no/such/program")
    assert done.returncode == 127
    assert "/no/such/program cannot be started" in done.stderr


@pytest.fixture(params=["", "keyed"])
def listening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Mine, int]]:
    if request.param:
        monkeypatch.setenv("HMC_JOB_KEY", hmc.keygen())
    port = free_port()
    with this_process(enable_listen_thread=True, listen_port=port) as one:
        yield one, port


def soon(what: Any) -> None:
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_agents_exchange_metadata_by_a_port(listening: tuple[Mine, int]) -> None:
    mine, port = listening
    other = Other()
    mine.others.append(other)
    other.ask(f"agent.fetch_remote_metadata('mine', '127.0.0.1', {port})")
    assert other.ask("until(lambda: agent.check_remote_metadata('mine'))") is True
    assert not mine.agent.check_remote_metadata("other")
    other.ask(f"agent.send_local_metadata('127.0.0.1', {port})")
    soon(lambda: mine.agent.check_remote_metadata("other"))
    handle = mine.transfer("WRITE", [(mine.address, SIZE, 0)], [(other.address, SIZE, 0)])
    assert mine.run(handle) == "DONE"
    assert np.array_equal(other.memory(), contents(3))
    other.ask("agent.send_notif('mine', b'known')")
    soon(lambda: mine.agent.get_new_notifs() == {"other": [b"known"]})
    other.ask(f"agent.invalidate_local_metadata('127.0.0.1', {port})")
    soon(lambda: not mine.agent.check_remote_metadata("other"))
    with pytest.raises(nixl.nixlNotFoundError):
        mine.agent.transfer(handle)


def test_an_agent_that_is_asked_while_it_starts_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver, delivered, port = Receiver._deliver, threading.Event(), free_port()

    def slow_memory(*given: Any) -> Any:
        asker.fetch_remote_metadata("early", "127.0.0.1", port)
        delivered.wait(0.3)  # the message is taken now, if ever it is before the agent is complete
        return LocalMemory(*given)

    def noted(receiver: Receiver, peer: Any, kind: int, message: bytes) -> None:
        deliver(receiver, peer, kind, message)
        delivered.set()

    asker = nixl_agent("asker")
    monkeypatch.setattr(Receiver, "_deliver", noted)
    monkeypatch.setattr(_agent_base, "LocalMemory", slow_memory)
    early = nixl_agent("early", nixl_agent_config(enable_listen_thread=True, listen_port=port))
    soon(lambda: asker.check_remote_metadata("early"))
    early._finalizer()
    asker._finalizer()


def test_partial_metadata_adds_up(listening: tuple[Mine, int]) -> None:
    mine, port = listening
    other = Other()
    mine.others.append(other)
    part = "agent.get_reg_descs([(memory.ctypes.data + {0}, {1}, 0, '')], 'DRAM')"
    first, second = part.format(0, 100), part.format(500, 100)
    other.ask(f"agent.register_memory({first}) and agent.register_memory({second}) and None")
    data = bytes.fromhex(other.ask(f"agent.get_partial_agent_metadata({first}, False).hex()"))
    with pytest.raises(nixl.nixlNotFoundError, match="no connection info"):
        mine.agent.add_remote_agent(data)
    other.ask(f"agent.send_partial_agent_metadata({first}, True, [], '127.0.0.1', {port})")
    soon(lambda: mine.agent.check_remote_metadata("other"))
    known = [mine.agent.get_xfer_descs([(other.address + at, 100, 0)], "DRAM") for at in (0, 500)]
    assert [mine.agent.check_remote_metadata("other", one) for one in known] == [True, False]
    data = bytes.fromhex(other.ask(f"agent.get_partial_agent_metadata({second}, False).hex()"))
    mine.agent.add_remote_agent(data)
    assert [mine.agent.check_remote_metadata("other", one) for one in known] == [True, True]


def test_agents_with_different_keys_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMC_JOB_KEY", hmc.keygen())
    port = free_port()
    with this_process(enable_listen_thread=True, listen_port=port) as mine:
        other = Other(HMC_JOB_KEY=hmc.keygen())
        mine.others.append(other)
        with pytest.raises(nixl.nixlNotAllowedError, match="HMC_JOB_KEY"):
            mine.agent.add_remote_agent(other.metadata)
        other.ask(f"agent.fetch_remote_metadata('mine', '127.0.0.1', {port})")
        assert other.ask("agent.check_remote_metadata('mine')") is False


DEVICES = """
    import multiprocessing, time
    import numpy as np
    import hmc
    from nixl._api import nixl_agent, nixl_agent_config
    SIZE, COUNT = 100_003, 300

    def bytes_on(device, seed):
        memory = hmc.Memory(SIZE, device)
        memory.copy_from(np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8))
        return memory, bytes_of(memory)

    def bytes_of(memory):
        data = np.empty(SIZE, np.uint8)
        memory.copy_to(data)
        return data

    def registered(agent, memory, device):
        kind, number = ("DRAM", 0) if device == "cpu" else ("VRAM", int(device[-1]))
        address = memory.numpy().ctypes.data if device == "cpu" else memory.__cuda_array_interface__["data"][0]
        return agent.register_memory([(address, SIZE, number, "")], kind), kind, address, number

    def serve(pipe):
        agent = nixl_agent("second", nixl_agent_config())
        while (device := pipe.recv()) is not None:
            memory, _ = bytes_on(device, 2)
            descs, *where = registered(agent, memory, device)
            pipe.send((agent.get_agent_metadata(), where))
            while pipe.recv() == "bytes":
                pipe.send(bytes_of(memory))
            agent.deregister_memory(descs)

    pipe, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True)
    other.start()  # before this process has a Context
    agent = nixl_agent("first", nixl_agent_config())
    at = np.arange(COUNT)
    sizes, zeros = 1 + at, at * 0
    for here, there in PAIRS:
        pipe.send(there)
        metadata, (far_kind, far_address, far_number) = pipe.recv()
        memory, mine = bytes_on(here, 1)
        descs, kind, address, number = registered(agent, memory, here)
        assert agent.query_memory(descs, "UCX") == [{"device": here}]
        agent.add_remote_agent(metadata)
        expected = np.random.default_rng(2).integers(0, 256, SIZE, dtype=np.uint8)
        near_rows = np.stack([address + at * 331, sizes, zeros + number], axis=1).astype(np.uint64)
        far_rows = np.stack([far_address + at[::-1] * 331, sizes, zeros + far_number], axis=1).astype(np.uint64)
        near, far = agent.get_xfer_descs(near_rows, kind), agent.get_xfer_descs(far_rows, far_kind)
        for way in ("WRITE", "READ"):
            handle = agent.initialize_xfer(way, near, far, "second", b"done")
            state = agent.transfer(handle)
            while state == "PROC":
                time.sleep(0.0005)
                state = agent.check_xfer_state(handle)
            assert state == "DONE", (here, there, way)
            for k in range(COUNT):
                a, b = slice(k * 331, k * 331 + 1 + k), slice((COUNT - 1 - k) * 331, (COUNT - 1 - k) * 331 + 1 + k)
                if way == "WRITE":
                    expected[b] = mine[a]
                else:
                    mine[a] = expected[b]
            pipe.send("bytes")
            assert np.array_equal(pipe.recv(), expected), (here, there, way)
            assert np.array_equal(bytes_of(memory), mine), (here, there, way)
            mine = np.roll(mine, 1)
            memory.copy_from(mine)
        pipe.send("end")
        agent.deregister_memory(descs)
    pipe.send(None)
    other.join(20)
    print("moved")
"""
PAIRS = [
    ("cpu", "cuda:0"),
    ("cuda:1", "cpu"),
    ("cuda:0", "cuda:1"),
    ("cuda:0", "rocm:1"),
    ("rocm:0", "hygon:0"),
    ("hygon:1", "musa:0"),
]


def test_memory_of_simulated_vendors_moves_between_processes() -> None:
    done = run_program(DEVICES.replace("PAIRS", repr(PAIRS)), sys.executable, **hmc.testing.environment())
    assert (done.returncode, done.stdout) == (0, "moved\n"), done.stderr


def test_device_memory_that_no_vendor_knows_is_refused() -> None:
    with this_process() as mine:
        with pytest.raises(nixl.nixlInvalidParamError, match="no device runtime"):
            mine.agent.register_memory([(mine.address, 10, 0, "")], "VRAM")


def test_torch_tensors_are_described() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: descriptors of tensors were not made")
    with this_process() as mine:
        tensors = [torch.arange(100, dtype=torch.float32), torch.ones(7, dtype=torch.int64)]
        rows = [(one.data_ptr(), one.numel() * one.element_size(), 0) for one in tensors]
        assert list(mine.agent.get_xfer_descs(tensors)) == rows
        assert list(mine.agent.register_memory(tensors)) == [(*row, b"") for row in rows]
        assert list(mine.agent.get_reg_descs(tensors[0])) == [(*rows[0], b"")]
        assert mine.agent.get_xfer_descs(torch.ones(4, 4).t()) is None
