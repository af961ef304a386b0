"""The drop-in against Mooncake's own package: names, signatures, and what one program gets from both.

Skipped, saying so, where Mooncake is not installed.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from types import ModuleType
from typing import Any

import pytest

from hmc.integrations.mooncake import engine as ours

# Of Mooncake's module: messages between processes, shared memory, the class below TransferEngine.
LEFT_OUT = {
    "CoroRPCInterface",
    "InnerTransferEngine",
    "ReceivedData",
    "ReceivedTensor",
    "RpcInterface",
    "SharedSegment",
    "create_rpc_client",
    "create_rpc_server",
}


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    try:
        return importlib.import_module("mooncake.engine")
    except ImportError as error:
        pytest.skip(f"Mooncake is not installed ({error}): its interface was not compared")


def public(holder: Any) -> set[str]:
    return {name for name in dir(holder) if not name.startswith("_")}


def test_the_module_has_the_same_names(theirs: ModuleType) -> None:
    assert public(theirs) - public(ours) == LEFT_OUT
    assert [(one.name, one.value) for one in ours.TransferOpcode] == [
        (name, one.value) for name, one in theirs.TransferOpcode.__members__.items()
    ]
    assert public(theirs.TransferNotify()) - public(ours.TransferNotify()) == set()
    assert (theirs.Read.value, theirs.Write.value) == (ours.Read.value, ours.Write.value)


def test_methods_have_the_same_names_and_parameters(theirs: ModuleType) -> None:
    real = theirs.TransferEngine
    assert public(real) - public(ours.TransferEngine) == set()
    for name in public(real) - {"TransferOpcode"}:
        signature = re.search(r"\((self[^\n]*)\) ->", getattr(real, name).__doc__)
        assert signature, name
        wanted = [one.partition(":")[0] for one in re.split(r", (?![^\[(]*[\])])", signature[1])]
        made = list(inspect.signature(getattr(ours.TransferEngine, name)).parameters.values())
        assert len(made) == len(wanted), name
        for one, other in zip(made, wanted, strict=True):
            assert one.name == other or re.fullmatch(r"arg\d", other), name
        defaults = signature[1].count(" = ")
        assert sum(one.default is not inspect.Parameter.empty for one in made) == defaults, name


PROGRAM = """
    import json, os, sys, time
    import numpy as np
    from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
    target, engine = TransferEngine(), TransferEngine()
    found = {}
    for one in (target, engine):
        found.setdefault("initialize", []).append(one.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
    found["another metadata server"] = TransferEngine().initialize("127.0.0.1", "http://127.0.0.1:9/metadata", "tcp", "")
    here, there, free = (np.random.default_rng(seed).integers(0, 256, 1 << 16, dtype=np.uint8) for seed in range(3))
    at, to, other = here.ctypes.data, there.ctypes.data, free.ctypes.data
    session = f"127.0.0.1:{target.get_rpc_port()}"
    found["register"] = [target.register_memory(to, there.nbytes), engine.register_memory(at, here.nbytes)]
    found["register again"] = engine.register_memory(at, here.nbytes)
    found["register a part"] = engine.register_memory(at + 100, 50)
    found["register nothing"] = engine.register_memory(other, 0)
    found["batch_register"] = [engine.batch_register_memory([other], [4096]), engine.batch_register_memory([], [])]
    found["batch_unregister"] = [engine.batch_unregister_memory([other]), engine.batch_unregister_memory([other])]
    found["unregister"] = engine.unregister_memory(other)
    found["first buffer"] = [engine.get_first_buffer_address(session) == to, engine.get_first_buffer_address("127.0.0.1:1")]
    found["write"] = [engine.transfer_sync_write(session, at, to, length) for length in (0, 1, 1000)]
    found["read"] = [engine.transfer_sync_read(session, at + 5000, to + 2000, 1000)]
    found["opcode"] = engine.transfer_sync(session, at + 100, to + 3000, 10, TransferOpcode.Write, TransferNotify("n", "m"))
    end = time.monotonic() + 20
    while not (notifies := target.get_notifies()) and time.monotonic() < end:
        time.sleep(0.001)
    found["notifies"] = [(one.name, one.msg) for one in notifies]
    found["batch"] = engine.batch_transfer_sync_write(session, [at, at + 9], [to + 7000, to + 8000], [10, 0])
    found["batch of nothing"] = engine.batch_transfer_sync_read(session, [], [], [])
    found["unequal lists"] = engine.batch_transfer_sync_write(session, [at], [to, to], [10, 20])
    found["unequal lists, started"] = engine.batch_transfer_async_read(session, [at], [to], [10, 20])
    started = engine.batch_transfer_async_read(session, [at + 200, at + 300], [to, to + 9], [5, 6])
    found["status"] = [engine.get_batch_transfer_status([started]), engine.get_batch_transfer_status([])]
    started = engine.transfer_submit_write(session, at, to + 10000, 3)
    while (state := engine.transfer_check_status(started)) == 0:
        pass
    found["check_status"] = state
    found["not registered there"] = [engine.transfer_sync_write(session, at, address, 10) for address in (0x10000, to + 65530)]
    started = engine.batch_transfer_async_write(session, [at], [0x10000], [10])
    found["not registered there, started"] = engine.get_batch_transfer_status([started])
    found["no engine"] = [
        engine.transfer_sync_write("127.0.0.1:1", at, to, 10),
        engine.batch_transfer_async_write("127.0.0.1:1", [at], [to], [10]),
        engine.transfer_submit_write("127.0.0.1:1", at, to, 10),
        engine.transfer_sync_write("nonsense", at, to, 10),
    ]
    found["probe"] = [engine.send_probe(session), engine.send_probe("127.0.0.1:1")]
    buffer = engine.allocate_managed_buffer(5000)
    found["managed"] = [
        engine.write_bytes_to_buffer(buffer, "hello", 5),
        engine.read_bytes_from_buffer(buffer, 5).decode(),
        engine.transfer_sync_write(session, buffer, to + 20000, 5),
        engine.free_managed_buffer(buffer, 5000),
    ]
    for name, call in (
        ("negative length", lambda: engine.transfer_sync_write(session, at, to, -1)),
        ("text for an address", lambda: engine.transfer_sync_write(session, "x", to, 1)),
        ("float", lambda: engine.register_memory(1.5, 1)),
        ("number for a session", lambda: engine.transfer_sync_write(5, at, to, 1)),
        ("number for an opcode", lambda: engine.transfer_sync(session, at, to, 1, 1)),
    ):
        try:
            found[name] = call()
        except TypeError:
            found[name] = "TypeError"
    found["bytes"] = [int(one.astype(np.uint64) @ np.arange(1, 1 + one.size, dtype=np.uint64)) for one in (here, there, free)]
    print(json.dumps(found), flush=True)
    os._exit(0)
"""


def run(*launcher: str) -> Any:
    command = [*launcher, sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd="/", env={**os.environ})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_one_program_gets_the_same_from_both(theirs: ModuleType) -> None:
    assert run(sys.executable, "-m", "hmc.integrations.mooncake") == run()
