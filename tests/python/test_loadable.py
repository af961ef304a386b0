"""RemoteBuffer.loadable() and storable(): memory of another process that this one reads and writes without an operation."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from patterns import pattern

import hmc

OWNER = """
    import sys
    import numpy as np
    sys.path.insert(0, sys.argv[3])
    import hmc
    from patterns import pattern
    context = hmc.Context(transports=sys.argv[1])
    peer = context.connect(sys.argv[2], timeout=20)
    mine = context.buffer(70001, access="r")
    mine.numpy()[:] = pattern(70001, 3)
    context.publish("mine", mine)
    open_ = context.buffer(5000)
    context.publish("open", open_)
    users = context.register(np.arange(5000, dtype=np.uint8))
    context.publish("users", users)
    print("ready", flush=True)
    sys.stdin.readline()
    mine.numpy()[4097:] = pattern(70001, 4)[4097:]
    print(bytes(open_.numpy()[17:34]) == bytes(range(17)) and not open_.numpy()[34:].any(), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_loadable_array_outlives_its_owner(transport: str) -> None:
    with hmc.Context(transports=transport) as context:
        arguments = [transport, context.addresses[0], str(Path(__file__).parent)]
        command = [sys.executable, "-c", textwrap.dedent(OWNER), *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as owner:
            assert owner.stdin is not None
            assert owner.stdout is not None
            try:
                peer = context.accept(timeout=20)
                assert owner.stdout.readline() == "ready\n"
                remote = peer.lookup("mine", timeout=20)
                assert peer.lookup("users", timeout=20).loadable() is None
                found = remote[33:].loadable()
                writable = peer.lookup("open", timeout=20)
                stored = writable[17:34].storable()
                if transport == "tcp":
                    assert found is stored is None
                    return
                assert stored is not None
                assert remote.storable() is None
                with hmc._core.BufferHold([], [writable]):
                    stored[:] = np.arange(17)
                assert found is not None
                assert found.dtype == np.uint8
                assert np.array_equal(found, pattern(70001, 3)[33:])
                with pytest.raises(ValueError, match="read-only"):
                    found[0] = 1
                owner.stdin.write("\n")
                owner.stdin.flush()
                assert owner.stdout.readline() == "True\n"
            finally:
                owner.kill()
        until = time.monotonic() + 20
        while remote.alive:
            assert time.monotonic() < until
            time.sleep(0.001)
        assert remote.loadable() is None
        del remote, peer
        gc.collect()
    assert np.array_equal(found, np.concatenate([pattern(70001, 3)[33:4097], pattern(70001, 4)[4097:]]))
