"""hmc.kv with pools in device memory: the tests of CPU pools on simulated devices, every pair of vendors, order behind streams."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_devices import SIMULATED
from test_streams import CALLER

import hmc
import hmc.testing

HERE = Path(__file__).parent


def run_python(*arguments: str, timeout: float, **environment: str) -> str:
    """Runs Python in this folder; fails the test with all that it printed."""
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=HERE,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


ONE_PROCESS = [
    "test_kv.py",
    "test_kv_layers_together.py",
    "test_kv_migration.py",
    "test_kv_sessions.py::test_any_split_to_any_split",
]
TWO_PROCESSES = ["test_kv_processes.py", "test_kv_killed.py"]
LOADS = ["test_kv_loads.py::test_pages_of_a_device_are_loaded_by_another_one"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("tests", "devices"),
    [
        (ONE_PROCESS, "cuda:0,rocm:1"),
        (ONE_PROCESS, "mlu:0,cpu"),
        (ONE_PROCESS, "cpu,musa:1"),
        (ONE_PROCESS, "hygon:0,hygon:1"),
        (TWO_PROCESSES, "cuda:0,cuda:1"),
        (TWO_PROCESSES, "rocm:1,mlu:0"),
        (TWO_PROCESSES, "cpu,cuda:0"),
        (LOADS, "cuda:0,cuda:1"),
    ],
)
def test_the_tests_of_kv_on_devices(tests: list[str], devices: str) -> None:
    out = run_python(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *tests,
        timeout=580,
        **hmc.testing.environment(),
        HMC_TEST_DEVICES=devices,
    )
    assert " passed" in out
    assert "skipped" not in out


@pytest.mark.timeout(600)
@pytest.mark.parametrize("carried", [{}, {"HMC_TRANSPORTS": "tcp,staging,ipc", "HMC_STAGING_SHARED": "0"}], ids=["shm", "tcp"])
def test_every_pair_of_simulated_vendors(carried: dict[str, str]) -> None:
    devices = ["cpu", *SIMULATED]
    out = run_python("kv_on_devices.py", *devices, timeout=580, **hmc.testing.environment(), **carried)
    assert f"pairs: {len(devices) ** 2}" in out


def test_every_pair_of_real_devices() -> None:
    devices = hmc.devices()
    if devices == ["cpu"]:
        pytest.skip("this machine has no accelerator that HMC can use")
    assert f"pairs: {len(devices) ** 2}" in run_python("kv_on_devices.py", *devices, timeout=110)


STREAMS = """
from kv_sides import PLAIN, TURNED, connected, expected, same
hmc.devices()  # opens the library
caller = Caller(vendor)
layer_bytes = 12 * 4 * 16 * 2 * 32 * 2
with connected(PLAIN, layout, (vendor + ":0", "cpu")) as (a, b, to_a, to_b):
    address = a.arrays[0].memory.address

    def write(layer, value):
        caller.gate.clear()
        caller.hold()
        caller.fill(address + layer * layer_bytes, value, layer_bytes)

    # A push sends a layer when what was queued before ready() is over.
    mine, theirs = [5, 1, 2, 0], list(range(64 // b.layout.block))
    inbox = b.pool.receive(to_a, theirs, 64)
    with a.pool.push(to_b, inbox.ticket, mine, credits=3) as push:
        for layer in range(3):
            write(layer, 0x11 + layer)
            push.ready(layer, timeout=20, stream=caller.stream)
            time.sleep(0.05)
            assert inbox.layers == list(range(layer))
            caller.gate.set()
            inbox.wait_layer(layer, timeout=20)
    inbox.wait(20)
    after = expected(a, mine, b, theirs, 64)
    assert (a.arrays[0].copy()[layer_bytes:][:layer_bytes] == 0x12).all()
    same(b, after)
    # A lease digests what is queued before it.
    write(1, 0x21)
    threading.Timer(0.1, caller.gate.set).start()
    lease = a.pool.lease("s", mine, stream=caller.stream)
    after = expected(a, mine, b, theirs, 64)
    assert (a.arrays[0].copy()[layer_bytes:][:layer_bytes] == 0x21).all()
    b.pool.pull(to_a, lease.ticket, theirs).wait(20)
    same(b, after)
    # A push that is cancelled while its layer is not complete ends at once, on both sides.
    inbox = b.pool.receive(to_a, theirs, 64)
    push = a.pool.push(to_b, inbox.ticket, mine)
    write(0, 0x31)
    push.ready(0, stream=caller.stream)
    time.sleep(0.05)
    push.cancel()
    for transfer in (push, inbox):
        try:
            transfer.wait(20)
        except hmc.HmcCancelledError:
            continue
        raise AssertionError(transfer)
    caller.gate.set()
    caller.synchronize()
    same(b, after)
    # A session migrates behind its stream.
    blocks, theirs = a.pool.allocate("m", 64), b.pool.allocate("m", 64)
    inbox = b.pool.receive(to_a, session="m", tokens=64)
    write(2, 0x41)
    move = a.pool.migrate(to_b, inbox.ticket, session="m", stream=caller.stream)
    time.sleep(0.05)
    assert not move.done and inbox.layers == [0, 1][: len(inbox.layers)]
    caller.gate.set()
    move.wait(20)
    inbox.wait(20)
    same(b, expected(a, blocks, b, theirs, 64))
# Freeing memory waits for the device, whose stream waits for this thread: no garbage may be left to the collector below.
del a, b, to_a, to_b, lease, inbox, push, move, transfer
import gc; gc.collect()
with connected(layout, PLAIN, ("cpu", vendor + ":0")) as (a, b, to_a, to_b):
    # Pages are written when what is queued before pull() and receive() is over: here it writes them too.
    address = b.arrays[0].memory.address
    mine, theirs = list(range(64 // a.layout.block)), [7, 3, 2, 8]
    for way in ("pull", "push"):
        wanted = expected(a, mine, b, theirs, 64)
        caller.gate.clear()
        caller.hold()
        caller.fill(address, 0x55, b.arrays[0].nbytes)
        wanted[0][:] = 0x55
        from hmc import layout as layouts
        layouts.convert(a.layout, a.arrays, mine, b.layout, wanted, theirs, 64)
        if way == "pull":
            ends = [b.pool.pull(to_a, a.pool.lease("s", mine).ticket, theirs, stream=caller.stream)]
        else:
            inbox = b.pool.receive(to_a, theirs, 64, stream=caller.stream)
            push = a.pool.push(to_b, inbox.ticket, mine)
            for layer in range(3):
                push.ready(layer, timeout=20)
            push._finish()
            ends = [push, inbox]
        time.sleep(0.1)
        assert not any(end.done for end in ends)
        caller.gate.set()
        for end in ends:
            end.wait(20)
        same(b, wanted)
print("ordered")
"""


@pytest.mark.parametrize("layout", ["PLAIN", "TURNED"])
@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_pages_are_used_behind_the_callers_stream(run_script: Callable[..., str], vendor: str, layout: str) -> None:
    source = CALLER + f"vendor = {vendor!r}\nimport kv_sides\nlayout = kv_sides.{layout}\n" + STREAMS
    assert "ordered" in run_script(source, dict(hmc.testing.environment()))


def test_a_number_does_not_say_whose_stream_it_is(run_script: Callable[..., str]) -> None:
    source = """
    from kv_sides import PLAIN, connected
    with connected(PLAIN, PLAIN, ("cpu", "cpu")) as (a, b, to_a, to_b):
        for call in (
            lambda: a.pool.lease("s", [0], stream=7),
            lambda: b.pool.pull(to_a, a.pool.lease("s", [0]).ticket, [0], stream=7),
            lambda: b.pool.receive(to_a, [0], stream=7),
            lambda: a.pool.migrate(to_b, b.pool.receive(to_a, [0]).ticket, [0], session="t", stream=7),
        ):
            try:
                call()
            except hmc.InvalidArgumentError as error:
                assert "does not say whose it is" in str(error), error
            else:
                raise AssertionError(call)
    print("refused")
    """
    assert "refused" in run_script(source, {})


PIECES = """
import threading
from hmc import kv, layout
from hmc.kv import _cache, _moves
from hmc.kv._moves import side
from kv_sides import Side

for chunk in (1, 10_000, 1 << 30):  # piece by piece, some together, in one
    _moves.CHUNK = chunk
    for text in ("L=3@1 | B=12 kv N=16 H=4@2 D=33 f16", "L=4 B=12 H=3 N=5 (kv D=8) f32", "L=2 B=7 kv H=4 D=32/8 N=16 8 bf16"):
        a, b = Side(text, 1, "musa:1"), Side(text, 1, "cpu")  # a device without kernels: copies
        blocks, first = [5, 1, 6, 2], 2 * a.layout.block - 3
        tokens = 2 * a.layout.block + 1
        layers, heads = (a.layout.layers[0] + 1, 1), (a.layout.heads[0] + 1, 2)
        found, wanted = (
            one.pool.cache.digest(side(one.layout, blocks, tokens, first), tokens, position=9, layers=layers, heads=heads)
            for one in (a, b)
        )
        assert found == wanted
        found, wanted = (one.pool.cache.digests(blocks, tokens, first) for one in (a, b))
        assert np.array_equal(found, wanted) and found.any()
        if chunk == 1:
            a.pool.cache.digests(blocks, tokens, first)
            spare = a.pool.scratch.spare

            def fail(*given, **more):
                raise MemoryError

            for name in ("digest", "runs"):  # the digest of a piece, and the copy of one
                real = getattr(layout, name)
                setattr(layout, name, fail)
                try:
                    a.pool.cache.digest(side(a.layout, blocks, tokens, first), tokens, layers=layers, heads=heads)
                except MemoryError:
                    pass
                else:
                    raise AssertionError(name)
                setattr(layout, name, real)
                assert a.pool.scratch.spare == spare
                assert not [thread for thread in threading.enumerate() if thread.name == "hmc.kv copies"]
        a.close()
        b.close()
print("equal")
"""


def test_digests_of_device_memory_in_pieces(run_script: Callable[..., str]) -> None:
    assert "equal" in run_script(PIECES, dict(hmc.testing.environment("musa")))


NO_ROOM = """
from hmc.kv import _remote
from kv_sides import PLAIN, TURNED, connected, expected, same

real = _remote.Scratch.take

def take(self, nbytes, device="cpu"):
    if device != "cpu":
        raise hmc.OutOfMemoryError("the device is full")
    return real(self, nbytes)

with connected(PLAIN, TURNED, ("cuda:0", "cuda:1")) as (a, b, to_a, to_b):
    for taken, staged in ((take, True), (real, False)):
        _remote.Scratch.take = taken
        for side in (a, b):
            side.pool.cache._again = 0.0
        before = b.pool.counters().get("bytes_staged", 0)
        wanted = expected(a, [3, 1, 2], b, [4, 7], 40)
        b.pool.pull(to_a, a.pool.lease("s", [3, 1, 2], 40).ticket, [4, 7]).wait(20)
        same(b, wanted)
        assert (b.pool.counters().get("bytes_staged", 0) > before) == staged, b.pool.counters()
print("pulled")
"""


def test_a_device_without_room_for_a_chunk_leaves_the_conversion_to_the_cpu(run_script: Callable[..., str]) -> None:
    assert "pulled" in run_script(NO_ROOM, dict(hmc.testing.environment("cuda")))
