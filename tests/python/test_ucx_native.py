"""A UCX program that is not HMC (ucx_peer.c) writes into ConnBuffers and reads from them: ConnBuffer.native("ucx")."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from test_ucx import info

import hmc


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    row = info(HMC_TRANSPORTS="ucx")
    if row["available"] != "True":
        pytest.skip(row["reason"])
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not Path("/usr/include/ucp/api/ucp.h").exists():
        pytest.skip("no C compiler, or not UCX's headers: as root, apt-get install gcc libucx-dev")
    built = tmp_path_factory.mktemp("ucx") / "ucx_peer"
    source = Path(__file__).with_name("ucx_peer.c")
    subprocess.run([compiler, "-O1", "-o", built, source, "-lucp", "-lucs"], check=True, timeout=60)
    return built


class Program:
    def __init__(self, built: Path, tls: str) -> None:
        # Its endpoints outlive their peers, which UCX refuses over shared memory unless told.
        environment = {**os.environ, "UCX_TLS": tls, **({} if tls == "tcp" else {"UCX_MM_ERROR_HANDLING": "y"})}
        self.process = subprocess.Popen([built], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def tell(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture(params=["self,sysv,posix", "tcp"], ids=["shared", "tcp"])
def pair(request: pytest.FixtureRequest, program: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[hmc.Context, Program]]:
    monkeypatch.setenv("UCX_TLS", request.param)
    with hmc.Context(transports="ucx") as context:
        peer = Program(program, request.param)
        yield context, peer
        peer.process.kill()
        peer.process.wait(timeout=30)


def pattern(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def test_it_writes_and_reads(pair: tuple[hmc.Context, Program]) -> None:
    context, program = pair
    buffer = context.buffer(2 << 20)
    (row,) = buffer.native("ucx")
    assert set(row) == {"version", "address", "length", "rkey"}, row
    assert row["length"] == 2 << 20
    (part,) = buffer[4100:4400].native("ucx")
    assert (part["address"], part["length"], part["rkey"]) == (int(row["address"]) + 4100, 300, row["rkey"])
    connection = context.connect_native("ucx", {})
    assert set(connection.fields) == {"version", "worker_address"}
    assert program.tell("connect", connection.fields["worker_address"]) == "ok"
    view = memoryview(buffer.numpy())
    for seed, size in enumerate([1, 7, 300, 4096, 65537, (1 << 20) + 3]):
        offset = 4100 + seed
        view[:] = pattern(len(view), 100)
        expected = bytearray(view)
        expected[offset : offset + size] = pattern(size, seed)
        assert program.tell("put", 0, row["rkey"], int(row["address"]) + offset, pattern(size, seed).hex()) == "ok"
        assert bytes(view) == expected, size
        view[:] = pattern(len(view), 101)
        got = program.tell("get", 0, row["rkey"], int(row["address"]) + offset, size)
        assert bytes.fromhex(got) == bytes(view[offset : offset + size]), size
    connection.close()
    connection.close()


def test_peers_of_hmc_are_served_beside_it(pair: tuple[hmc.Context, Program]) -> None:
    context, program = pair
    with hmc.Context(transports="ucx") as other:
        peer = other.connect(context.addresses[0], timeout=30)
        buffer = context.buffer(100_003)
        remote = peer.import_buffer(buffer.descriptor(), timeout=30)
        source = other.buffer(100_003)
        (row,) = buffer.native("ucx")
        link = context.connect_native("ucx", {})
        assert program.tell("connect", link.fields["worker_address"]) == "ok"
        for seed in range(5):
            source.numpy()[:] = np.frombuffer(pattern(100_003, seed), np.uint8)
            work = peer.put(source[:50_000], remote[:50_000])
            assert program.tell("put", 0, row["rkey"], int(row["address"]) + 50_000, pattern(50_003, 50 + seed).hex()) == "ok"
            work.wait(timeout=30)
            assert bytes(memoryview(buffer.numpy())) == pattern(100_003, seed)[:50_000] + pattern(50_003, 50 + seed)


def test_ends(pair: tuple[hmc.Context, Program], program: Path) -> None:
    context, peer = pair
    buffer = context.buffer(8192)
    (row,) = buffer.native("ucx")
    first, second = context.connect_native("ucx", {}), context.connect_native("ucx", {})
    left = Program(program, os.environ["UCX_TLS"])
    assert left.tell("connect", first.fields["worker_address"]) == "ok"
    assert peer.tell("connect", second.fields["worker_address"]) == "ok"
    for each in (left, peer):
        assert each.tell("put", 0, row["rkey"], row["address"], "ab" * 64) == "ok"
    # A connection's end is that of no other, and what would have come through it does not come.
    first.close()
    buffer.numpy()[:] = 0
    assert left.tell("patience", 2) == "ok"  # over shared memory nothing tells it that its worker is gone
    assert left.tell("put", 0, row["rkey"], row["address"], "ff" * 64).startswith("error")
    left.process.kill()
    left.process.wait(timeout=30)
    assert not buffer.numpy().any()
    assert peer.tell("put", 0, row["rkey"], int(row["address"]) + 5, "cd") == "ok"
    assert buffer.numpy()[5] == 0xCD
    # Nor does a program's death end anything else.
    dying = Program(program, os.environ["UCX_TLS"])
    third = context.connect_native("ucx", {})
    assert dying.tell("connect", third.fields["worker_address"]) == "ok"
    assert dying.tell("put", 0, row["rkey"], row["address"], "11" * 64) == "ok"
    dying.process.send_signal(signal.SIGKILL)
    dying.process.wait(timeout=30)
    for _ in range(20):
        assert peer.tell("put", 0, row["rkey"], int(row["address"]) + 6, "ee") == "ok"
        time.sleep(0.02)
    third.close()
    buffer.close(timeout=30)
    with pytest.raises(hmc.ClosedError):
        buffer.native("ucx")


def test_what_it_cannot_use_is_refused(program: Path) -> None:
    with hmc.Context(transports="ucx") as context:
        with pytest.raises(ValueError, match="worker_address"):
            context.connect_native("ucx", {"worker_address": "00"})
