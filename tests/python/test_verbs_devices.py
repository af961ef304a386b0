"""Memory of devices over verbs, through the whole SDK: simulated devices, and network cards that are copies (tests/cpp/fabric)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hmc.testing

ROOT = Path(__file__).resolve().parents[2]

# Two Contexts of one process, whose cards take device memory as `dma_buf` and `lying` say.
PRELUDE = """
import ctypes, sys
import numpy as np
import hmc

library = ctypes.CDLL(FABRIC)
library.hmc_fabric_controls.restype = ctypes.POINTER(ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32)))

def configure(dma_buf=0, lying=0):
    library.hmc_fabric_controls()[0]((ctypes.c_uint32 * 10)(0, dma_buf, 0, lying))

def pattern(size, seed):
    return np.random.Generator(np.random.SFC64([seed, size])).integers(0, 256, size, dtype=np.uint8)

def filled(context, size, device, seed):
    buffer = context.buffer(size, device=device)
    buffer.memory.copy_from(pattern(size, seed))
    return buffer

def content(buffer):
    out = np.empty(buffer.nbytes, np.uint8)
    buffer.memory.copy_to(out)
    return out

def move(here, there, peer, near, far, size):
    source, target, back = (filled(c, size, d, i) for i, (c, d) in enumerate([(here, near), (there, far), (here, near)]))
    remote = peer.import_buffer(target.descriptor())
    peer.put(source[3 : size - 50], remote[40 : size - 13], notify=9).wait(timeout=30)
    expected = pattern(size, 1)
    expected[40 : size - 13] = pattern(size, 0)[3 : size - 50]
    assert np.array_equal(content(target), expected), (near, far, size)
    peer.get(back, remote).wait(timeout=30)
    assert np.array_equal(content(back), expected), (near, far, size)

DEVICES = ["cpu", "cuda:0", "cuda:1", "rocm:0", "mlu:0", "musa:0"]
"""

DIRECT = """
configure(dma_buf=1)
with hmc.Context() as here, hmc.Context() as there:
    peer = here.connect(there.addresses[0], timeout=30)
    there.accept(timeout=30)
    for near in DEVICES:
        for far in DEVICES:
            assert peer.path(near, far).transport == "verbs", peer.path(near, far)
            for size in (100, 4097, (1 << 20) + 3):
                move(here, there, peer, near, far, size)
    assert here.counters()["bytes_staged"] == 0, here.counters()
    assert "messages by staging" in str(peer.path("cuda:0", "rocm:0"))
"""

REFUSED = """
configure(dma_buf=1, lying=1)
with hmc.Context() as here, hmc.Context() as there:
    peer = here.connect(there.addresses[0], timeout=30)
    there.accept(timeout=30)
    assert peer.path("cuda:0", "rocm:0").transport == "verbs"
    for near, far in [("cuda:0", "rocm:0"), ("cpu", "mlu:0"), ("musa:0", "cpu")]:
        for size in (100, (1 << 20) + 3):
            move(here, there, peer, near, far, size)
    counters = here.counters()
    assert counters["bytes_staged"] > 0 and counters["routes.refused.verbs"] > 0, counters
"""

# More memory than a process may have registered (256 MiB of Cambricon's), in turns; the buffers' second time included.
EVICTED = """
import time
configure(dma_buf=1)
size, count = 60 << 20, 6
with hmc.Context() as here, hmc.Context() as there:
    peer = here.connect(there.addresses[0], timeout=30)
    there.accept(timeout=30)
    targets = [there.buffer(size, device="mlu:0") for _ in range(count)]
    remotes = []
    for target in targets:
        remotes.append(peer.import_buffer(target.descriptor()))
        time.sleep(0.3)
    time.sleep(1.1)
    source, back = here.buffer(100_000), here.buffer(100_000)
    order = np.arange(0, 90_000, 3000)
    batches = [peer.prepare_blocks([(source, order, remote, order * 500)], block=1777) for remote in remotes]
    staged = here.counters()["bytes_staged"]
    for turn in range(2):
        for i, remote in enumerate(remotes):
            time.sleep(1.1)
            source.numpy()[:] = pattern(source.nbytes, 10 * turn + i)
            offset = 1 + 7777 * turn
            peer.put(source, remote[offset : offset + source.nbytes], notify=i).wait(timeout=30)
            peer.get(back, remote[offset : offset + source.nbytes]).wait(timeout=30)
            assert np.array_equal(back.numpy(), source.numpy()), (turn, i)
            assert np.array_equal(content(targets[i][offset : offset + source.nbytes]), source.numpy()), (turn, i)
            peer.put_blocks(batches[i]).wait(timeout=30)
            for at in order:
                seen = content(targets[i][500 * int(at) : 500 * int(at) + 1777])
                assert np.array_equal(seen, source.numpy()[at : at + 1777]), (turn, i, at)
    assert here.counters()["bytes_staged"] == staged, here.counters()
    assert there.counters()["registrations.evicted"] >= count, there.counters()
"""

# The same while four threads use all of them at once, on both sides; every put is read back.
EVICTED_IN_USE = """
import threading, time
configure(dma_buf=1)
size, count = 50 << 20, 6
failures = []

def use(peer, context, remotes, index):
    try:
        generator = np.random.default_rng(index)
        mine = [context.buffer(3 << 20, device=device) for device in ("cpu", "mlu:0")]
        back = context.buffer(3 << 20)
        end, turn = time.monotonic() + 8, 0
        while time.monotonic() < end:
            turn += 1
            source = mine[turn % 2]
            bytes = pattern(source.nbytes, 1000 * index + turn)
            source.memory.copy_from(bytes)
            remote = remotes[int(generator.integers(count))]
            offset = index * (4 << 20) + 11
            length = int(generator.integers(1, source.nbytes - 11))
            put = peer.put(source[11 : 11 + length], remote[offset : offset + length], complete="remote")
            put.wait(timeout=30)
            peer.get(back[5 : 5 + length], remote[offset : offset + length]).wait(timeout=30)
            assert np.array_equal(back.numpy()[5 : 5 + length], bytes[11 : 11 + length]), (index, turn)
    except BaseException as error:
        failures.append(error)

with hmc.Context() as here, hmc.Context() as there:
    peer = here.connect(there.addresses[0], timeout=30)
    other = there.accept(timeout=30)
    targets = [there.buffer(size, device="mlu:0") for _ in range(count)]
    remotes = [peer.import_buffer(target.descriptor()) for target in targets]
    threads = [threading.Thread(target=use, args=(peer, here, remotes, index)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    evicted = here.counters().get("registrations.evicted", 0) + there.counters().get("registrations.evicted", 0)
    assert evicted >= 3, (here.counters(), there.counters())
    for target in targets:
        target.close(timeout=30)
"""


def fabric() -> Path:
    for folder in ("package", "dev"):
        if (path := ROOT / "build" / folder / "tests" / "cpp" / "libhmc_fabric.so").exists():
            return path
    pytest.skip("the C++ tests are not built with the verbs headers: make test builds them")


SCRIPTS = {
    "reached": (DIRECT, ""),
    "refused": (REFUSED, "did not arrive"),
    "evicted": (EVICTED, ""),
    "in_use": (EVICTED_IN_USE, ""),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_puts_and_gets(name: str) -> None:
    script, warning = SCRIPTS[name]
    environment = {
        **os.environ,
        **hmc.testing.environment(),
        "HMC_VERBS_LIBRARY": str(fabric()),
        "HMC_TRANSPORTS": "verbs,staging",
        "HMC_STAGING_SHARED": "0",  # as between hosts
        **({"HMC_NICS": "fabric0"} if name in ("evicted", "in_use") else {}),
    }
    code = f"FABRIC = {str(fabric())!r}\n" + PRELUDE + script
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False, cwd="/", env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert warning in done.stderr, done.stderr
