"""Programs that import Mooncake by its name, and memory of simulated vendors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import hmc.testing


def run_program(source: str, *launcher: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hmc.integrations.mooncake", *launcher, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env={**os.environ, **environment},
    )


def test_programs_and_their_children_import_the_name() -> None:
    source = """
        import importlib.util, subprocess, sys
        assert importlib.util.find_spec("mooncake.engine") is not None
        import mooncake.engine
        from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
        assert mooncake.engine.TransferEngine is TransferEngine is sys.modules["mooncake.engine"].TransferEngine
        assert TransferEngine.TransferOpcode.Write is TransferOpcode.Write is mooncake.engine.Write
        try:
            import mooncake.store
        except ImportError as error:
            assert "mooncake.store" in str(error)
        else:
            raise AssertionError
        child = "from mooncake.engine import TransferEngine; print(TransferEngine.__module__)"
        subprocess.run([sys.executable, "-c", child], check=True)
    """
    done = run_program(source, sys.executable)
    assert (done.returncode, done.stdout) == (0, "hmc.integrations.mooncake.engine\n"), done.stderr


def test_the_launcher_says_how_it_is_used_and_what_it_cannot_start() -> None:
    command = [sys.executable, "-m", "hmc.integrations.mooncake"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0
    assert "usage: python -m hmc.integrations.mooncake PROGRAM" in done.stdout
    done = subprocess.run([*command, "no-such-program"], capture_output=True, text=True, timeout=60, cwd="/")
    assert (done.returncode, done.stderr) == (127, "no-such-program cannot be started: No such file or directory\n")


DEVICES = """
    import multiprocessing
    import numpy as np
    import hmc
    from mooncake.engine import TransferEngine
    SIZE, COUNT = 100_003, 300

    def bytes_on(device, seed):
        memory = hmc.Memory(SIZE, device)
        memory.copy_from(np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8))
        address = memory.numpy().ctypes.data if device == "cpu" else memory.__cuda_array_interface__["data"][0]
        return memory, bytes_of(memory), address

    def bytes_of(memory):
        data = np.empty(SIZE, np.uint8)
        memory.copy_to(data)
        return data

    def made():
        engine = TransferEngine()
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
        return engine

    def serve(pipe):
        engine = made()
        while (device := pipe.recv()) is not None:
            memory, _, address = bytes_on(device, 2)
            assert engine.register_memory(address, SIZE, device) == 0
            pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", address))
            while pipe.recv() == "bytes":
                pipe.send(bytes_of(memory))
            assert engine.unregister_memory(address) == 0

    pipe, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True)
    other.start()  # before this process has a Context
    engine = made()
    at = np.arange(COUNT)
    sizes = 1 + at
    for here, there in PAIRS:
        pipe.send(there)
        session, far = pipe.recv()
        memory, mine, near = bytes_on(here, 1)
        assert engine.register_memory(near, SIZE) == 0
        assert engine.read_bytes_from_buffer(near + 5, 100) == mine[5:105].tobytes()
        expected = np.random.default_rng(2).integers(0, 256, SIZE, dtype=np.uint8)
        for way in ("write", "read"):
            move = getattr(engine, f"batch_transfer_sync_{way}")
            assert move(session, near + at * 331, far + at[::-1] * 331, sizes) == 0, (here, there, way)
            for k in range(COUNT):
                a, b = slice(k * 331, k * 331 + 1 + k), slice((COUNT - 1 - k) * 331, (COUNT - 1 - k) * 331 + 1 + k)
                if way == "write":
                    expected[b] = mine[a]
                else:
                    mine[a] = expected[b]
            pipe.send("bytes")
            assert np.array_equal(pipe.recv(), expected), (here, there, way)
            assert np.array_equal(bytes_of(memory), mine), (here, there, way)
            mine = np.roll(mine, 1)
            memory.copy_from(mine)
        pipe.send("end")
        assert engine.unregister_memory(near) == 0
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


def test_the_plugin_of_sglang_extends_the_paths_once() -> None:
    source = """
import os, sys
from hmc.integrations import sglang
for _ in range(3):
    sglang._stand_in()
shims = sys.path[0]
print(sys.path.count(shims), os.environ["PYTHONPATH"].split(os.pathsep).count(shims))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, cwd="/", check=True)
    assert done.stdout.split() == ["1", "1"]
