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
    library.hmc_fabric_controls()[0]((ctypes.c_uint32 * 9)(0, dma_buf, 0, lying))

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


def fabric() -> Path:
    for folder in ("package", "dev"):
        if (path := ROOT / "build" / folder / "tests" / "cpp" / "libhmc_fabric.so").exists():
            return path
    pytest.skip("the C++ tests are not built with the verbs headers: make test builds them")


@pytest.mark.parametrize(("script", "warning"), [(DIRECT, ""), (REFUSED, "did not arrive")], ids=["reached", "refused"])
def test_puts_and_gets(script: str, warning: str) -> None:
    environment = {
        **os.environ,
        **hmc.testing.environment(),
        "HMC_VERBS_LIBRARY": str(fabric()),
        "HMC_TRANSPORTS": "verbs,staging",
        "HMC_STAGING_SHARED": "0",  # as between hosts
    }
    code = f"FABRIC = {str(fabric())!r}\n" + PRELUDE + script
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False, cwd="/", env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert warning in done.stderr, done.stderr
