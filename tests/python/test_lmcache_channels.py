"""LMCache's own transfer channels, unmodified, over the drop-ins. Skipped, saying so, where LMCache is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from ports import free_port

CHANNELS = "lmcache.v1.distributed.transfer_channel.impl"
BOTH = """
    import sys, time
    import numpy as np
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from CHANNEL import CONTEXT
    PAGE, PAGES = 4096, 4096

    def contents(seed):
        return np.random.default_rng(seed).integers(0, 256, PAGE * PAGES, dtype=np.uint8)

    def channel(memory, port):
        url = f"127.0.0.1:{port}"
        return CONTEXT(L1MemoryDesc(memory.ctypes.data, memory.nbytes, PAGE), url, url)
"""
SERVER = """
    memory = contents(1)
    context = channel(memory, int(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.read()
"""
CLIENT = """
    memory = contents(2)
    context = channel(memory, int(sys.argv[2]))
    client = context.get_transfer_channel_client(f"127.0.0.1:{sys.argv[1]}")
    random = np.random.default_rng(3)
    expected = memory.copy()
    theirs = contents(1)
    for round in range(10):
        here, there = random.permutation(PAGES // 4)[:200] * 4 * PAGE, random.permutation(PAGES // 4)[:200] * 4 * PAGE
        sizes = random.integers(1, 4 * PAGE, 200)
        pairs = [context.get_transfer_channel_address([(int(at), int(n)) for at, n in zip(side, sizes)]) for side in (here, there)]
        task = client.submit_read(*pairs)
        end = time.monotonic() + 20
        while not (result := client.query_read_status(task)).finished:
            assert time.monotonic() < end
        assert result.succeeded_mask == [True] * 200
        for a, b, n in zip(here, there, MOVED):
            expected[a : a + n] = theirs[b : b + n]
        assert np.array_equal(memory, expected)
    client.close()
    print("equal")
"""


class Channel:
    """One of LMCache's channels, and the drop-in that it runs over."""

    def __init__(self, module: str, context: str, package: str, moved: str) -> None:
        """``moved``: the bytes that a read of ``sizes`` bytes moves."""
        self.module = f"{CHANNELS}.{module}"
        self._both = textwrap.dedent(BOTH).replace("CHANNEL", self.module).replace("CONTEXT", context)
        self._package = package
        self._moved = moved

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        source = self._both + textwrap.dedent(program).replace("MOVED", self._moved)
        return subprocess.Popen(
            [sys.executable, "-m", self._package, sys.executable, "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env={**os.environ},
        )


NIXL = Channel("nixl_impl", "NixlTransferChannelContext", "hmc.integrations.nixl", "-(-sizes // PAGE) * PAGE")
MOONCAKE = Channel("mooncake_te_impl", "MooncakeTeTransferChannelContext", "hmc.integrations.mooncake", "sizes")


@pytest.mark.parametrize("channel", [NIXL, MOONCAKE], ids=["nixl", "mooncake"])
def test_a_channel_reads_the_pages_of_another(channel: Channel) -> None:
    pytest.importorskip(CHANNELS, reason="LMCache is not installed: its transfer channels were not run")
    ports = [str(free_port()) for _ in range(2)]
    server = channel.start(SERVER, *ports)
    try:
        assert server.stdout is not None
        lines: list[str] = []
        while not (line := server.stdout.readline()).endswith("ready\n"):
            assert line, "".join(lines)
            lines.append(line)
        client = channel.start(CLIENT, *ports)
        output, _ = client.communicate(timeout=100)
        assert output.endswith("equal\n"), output
    finally:
        server.kill()
        server.wait(20)
