"""Order behind a caller's streams, with simulated devices: a host function holds the stream until the test lets it go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc.testing

# A caller's stream on the library that HMC uses, as a framework would have it.
CALLER = """
import ctypes, os, threading, time

class Caller:
    def __init__(self, vendor):
        self.library = ctypes.CDLL(os.environ["HMC_CUDA_LIBRARY" if vendor == "cuda" else "HMC_ROCM_LIBRARY"])
        self.cuda = vendor == "cuda"
        stream = ctypes.c_void_p()
        if self.cuda:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            self.call("cuCtxSetCurrent", context)
            self.call("cuStreamCreate", ctypes.byref(stream), 1)
        else:
            self.call("hipStreamCreateWithFlags", ctypes.byref(stream), 1)
        self.stream = stream.value
        self.gate = threading.Event()
        self.held = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: self.gate.wait(60) and None)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, (name, code)

    def hold(self):
        name = "cuLaunchHostFunc" if self.cuda else "hipLaunchHostFunc"
        self.call(name, ctypes.c_void_p(self.stream), self.held, None)

    def fill(self, address, value, size):
        name = "cuMemsetD8Async" if self.cuda else "hipMemsetAsync"
        kind = ctypes.c_ubyte if self.cuda else ctypes.c_int
        self.call(name, ctypes.c_void_p(address), kind(value), ctypes.c_size_t(size), ctypes.c_void_p(self.stream))

    def copy_out(self, host, address):
        where, size = host.ctypes.data, ctypes.c_size_t(host.nbytes)
        if self.cuda:
            self.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(where), ctypes.c_void_p(address), size, ctypes.c_void_p(self.stream))
        else:
            self.call("hipMemcpyAsync", ctypes.c_void_p(where), ctypes.c_void_p(address), size, 2, ctypes.c_void_p(self.stream))

    def synchronize(self):
        self.call("cuStreamSynchronize" if self.cuda else "hipStreamSynchronize", ctypes.c_void_p(self.stream))

def address_of(buf):
    from_dlpack = buf.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(pointer(from_dlpack, b"dltensor"), ctypes.POINTER(ctypes.c_void_p))[0]

def read(buf):
    out = np.empty(len(buf), np.uint8)
    buf.memory.copy_to(out)
    return out
"""


def job(run_job: Callable[..., str], vendor: str, target: str, body: str) -> None:
    environment = {**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "65536"}
    run_job(CALLER + f"vendor, target = {vendor!r}, {target!r}\n" + body, environment=environment)


@pytest.mark.parametrize("target", ["same", "mlu:0", "cpu"])
@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_a_put_starts_after_the_stream(run_job: Callable[..., str], vendor: str, target: str) -> None:
    job(
        run_job,
        vendor,
        target,
        """
size = 300_001
with hmc.init() as comm:
    here = vendor + ":0" if comm.rank == 0 or target == "same" else target
    buf = comm.buffer(size, device=here)
    buf.memory.fill(1)
    remote = comm.exchange(buf, timeout=30)[1 - comm.rank]
    if comm.rank == 0:
        caller = Caller(vendor)
        for value, post in ((7, "put"), (8, "isend"), (9, "blocks")):
            caller.gate.clear()
            caller.hold()
            caller.fill(address_of(buf), value, size)
            if post == "put":
                work = comm.put(buf, remote, notify=1, stream=caller.stream)
            elif post == "isend":
                work = comm.isend(buf, 1, tag=3, stream=caller.stream)
            else:
                batch = comm.prepare_blocks([(buf, [0, 200_000], remote, [200_000, 0])], block=100_001)
                work = comm.put_blocks(batch, notify=2, stream=caller.stream)
            time.sleep(0.1)
            assert not work.done, post
            caller.gate.set()
            work.wait(30)
            comm.barrier(timeout=30)
    else:
        comm.wait_notify(0, 1, timeout=30)
        assert (read(buf) == 7).all()
        comm.barrier(timeout=30)
        comm.recv(buf, 0, tag=3, timeout=30)
        assert (read(buf) == 8).all()
        comm.barrier(timeout=30)
        comm.wait_notify(0, 2, timeout=30)
        got = read(buf)
        assert (got[:100_001] == 9).all() and (got[200_000:] == 9).all() and (got[100_001:200_000] == 8).all()
        comm.barrier(timeout=30)
""",
    )


@pytest.mark.parametrize("source", ["same", "cpu"])
@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_a_stream_joins_what_arrives(run_job: Callable[..., str], vendor: str, source: str) -> None:
    job(
        run_job,
        vendor,
        source,
        """
size = 200_003
with hmc.init() as comm:
    here = vendor + ":0" if comm.rank == 0 or target == "same" else target
    buf = comm.buffer(size, device=here)
    buf.memory.fill(1)
    comm.barrier(timeout=30)
    if comm.rank == 0:
        caller = Caller(vendor)
        host = np.zeros(size, np.uint8)
        work = comm.irecv(buf, 1, tag=4)
        work.join(caller.stream, device=here)
        caller.copy_out(host, address_of(buf))
        time.sleep(0.1)
        assert (host == 0).all()
        comm.barrier(timeout=30)
        caller.synchronize()
        assert (host == 5).all()
        work.wait(30)
        # A receive that is told of a stream waits for what still uses the memory.
        caller.gate.clear()
        caller.hold()
        caller.copy_out(host, address_of(buf))
        work = comm.irecv(buf, 1, tag=5, stream=caller.stream)
        comm.barrier(timeout=30)
        time.sleep(0.1)
        assert not work.done
        caller.gate.set()
        work.wait(30)
        caller.synchronize()
        assert (host == 5).all() and (read(buf) == 6).all()
    else:
        buf.memory.fill(5)
        comm.barrier(timeout=30)
        comm.send(buf, 0, tag=4, timeout=30)
        buf.memory.fill(6)
        comm.barrier(timeout=30)
        comm.send(buf, 0, tag=5, timeout=30)
    comm.barrier(timeout=30)
""",
    )


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_a_message_that_came_whole_outlives_its_sender(run_script: Callable[..., str], vendor: str) -> None:
    run_script(
        CALLER
        + f"vendor = {vendor!r}"
        + """
import subprocess, sys

SENDER = '''
import sys, hmc
ctx = hmc.Context(transports="tcp")
peer = ctx.connect(sys.argv[1], timeout=30)
peer.send(bytes([5]) * 100, tag=1, timeout=30)
peer.notify(1)
sys.stdin.read()
'''
with hmc.Context(transports="tcp") as ctx:
    sender = subprocess.Popen([sys.executable, "-c", SENDER, ctx.addresses[0]], stdin=subprocess.PIPE)
    peer = ctx.accept(timeout=30)
    buf = ctx.buffer(100, device=vendor + ":0")
    buf.memory.fill(1)
    caller = Caller(vendor)
    caller.hold()
    work = peer.irecv(buf, tag=1, stream=caller.stream)
    peer.wait_notify(1, timeout=30)
    sender.kill()
    sender.wait()
    while peer.alive:
        time.sleep(0.001)
    time.sleep(0.05)
    assert not work.done and (read(buf) == 1).all()
    caller.gate.set()
    work.wait(30)
    assert (read(buf) == 5).all()
    sender.stdin.close()
""",
        hmc.testing.environment(),
    )


def test_a_send_that_is_withdrawn_ends_with_a_receive_that_stands_behind_a_stream(run_script: Callable[..., str]) -> None:
    run_script(
        CALLER
        + """
with hmc.Context(transports="tcp") as ctx, hmc.Context(transports="tcp") as other:
    there = other.connect(ctx.addresses[0], timeout=30)
    peer = ctx.accept(timeout=30)
    buf = ctx.buffer(1 << 20, device="cuda:0")
    caller = Caller("cuda")
    caller.hold()
    message = np.zeros(1 << 20, np.uint8)
    for leaves in (False, True):
        work = peer.irecv(buf, tag=1, stream=caller.stream)
        sent = there.isend(message, tag=1)
        there.notify(1)
        peer.wait_notify(1, timeout=30)  # it is here
        if leaves:
            there.close()
        else:
            try:
                sent.cancel()
            except hmc.UnsupportedError:
                pass  # the receiver ends it
            there.notify(2)
            peer.wait_notify(2, timeout=30)  # so is its withdrawal
        time.sleep(0.2)
        assert not work.done and not sent.done
        work.cancel()
        try:
            sent.wait(30)
        except (hmc.HmcCancelledError, hmc.ClosedError):
            pass
        else:
            raise AssertionError("it was sent")
    caller.gate.set()
""",
        hmc.testing.environment(),
    )


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_a_receive_that_is_withdrawn_behind_a_stream_leaves_its_message(run_script: Callable[..., str], vendor: str) -> None:
    run_script(
        CALLER
        + f"vendor = {vendor!r}"
        + """
import asyncio

with hmc.Context(transports="tcp") as ctx, hmc.Context(transports="tcp") as other:
    there = other.connect(ctx.addresses[0], timeout=30)
    peer = ctx.accept(timeout=30)
    buf = ctx.buffer(1000, device=vendor + ":0")
    buf.memory.fill(1)
    caller = Caller(vendor)
    caller.hold()

    def withdrawn(receive):
        try:
            receive()
        except (hmc.HmcCancelledError, asyncio.TimeoutError):
            pass
        else:
            raise AssertionError("it did not wait for the stream")

    async def receive():
        await peer.irecv(buf, tag=1, stream=caller.stream)

    async def receive_for_a_while():
        await asyncio.wait_for(receive(), 0.1)

    def cancel():
        work = peer.irecv(buf, tag=1, stream=caller.stream)
        work.cancel()
        work.wait(30)

    for seed in (1, 2, 3):
        there.send(pattern(1000 - seed, seed), tag=1, timeout=30)
    there.notify(1)
    peer.wait_notify(1, timeout=30)  # they are here
    withdrawn(cancel)
    withdrawn(lambda: asyncio.run(receive_for_a_while()))
    # What waits for the same message gets it, and those behind it keep their order.
    first = peer.irecv(buf, tag=1, stream=caller.stream)
    second = peer.irecv(buf, tag=1, stream=caller.stream)
    first.cancel()
    got = np.zeros(1000, np.uint8)
    for seed in (1, 3):
        assert peer.recv(got, tag=1, timeout=30).bytes == 1000 - seed
        assert np.array_equal(got[: 1000 - seed], pattern(1000 - seed, seed))
    assert not second.done and (read(buf) == 1).all()
    caller.gate.set()
    second.wait(30)
    assert np.array_equal(read(buf)[:998], pattern(998, 2))
""",
        hmc.testing.environment(),
    )


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_a_joined_stream_does_not_wait_for_callbacks(run_job: Callable[..., str], vendor: str) -> None:
    job(
        run_job,
        vendor,
        "cpu",
        """
with hmc.init() as comm:
    if comm.rank == 0:
        buf = comm.buffer(8, device=vendor + ":0")
        caller = Caller(vendor)
        passed, results = threading.Event(), []
        first, second = (comm.irecv(np.zeros(8, np.uint8), 1, tag=tag) for tag in (1, 2))
        second.join(caller.stream, device=vendor + ":0")
        # A callback that waits for what stands behind the stream.
        first.add_done_callback(lambda _: results.append(passed.wait(30)))
        comm.barrier(timeout=30)
        first.wait(30)
        comm.barrier(timeout=30)
        second.wait(30)
        caller.synchronize()
        passed.set()
        while not results:
            time.sleep(0.001)
        assert results == [True]
    else:
        for tag in (1, 2):
            comm.barrier(timeout=30)
            comm.send(np.ones(8, np.uint8), 0, tag=tag, timeout=30)
    comm.barrier(timeout=60)
""",
    )


def test_streams_that_cannot_be_are_refused(run_job: Callable[..., str]) -> None:
    run_job(
        """
with hmc.init() as comm:
    buf = comm.buffer(100)
    remote = comm.exchange(buf, timeout=30)[1 - comm.rank]
    refused = 0
    class Short:
        def __cuda_stream__(self):
            return (0,)
    for call in (
        lambda: comm.put(buf, remote, stream=Short()),
        lambda: comm.put(buf, remote, stream=5),
        lambda: comm.get(buf, remote, stream=5),
        lambda: comm.isend(np.zeros(4), 1 - comm.rank, stream=0),
        lambda: comm.put(buf, remote, stream="text"),
    ):
        try:
            call()
        except hmc.InvalidArgumentError as error:
            assert "stream" in str(error)
            refused += 1
    assert refused == 5
    comm.barrier(timeout=30)
"""
    )
