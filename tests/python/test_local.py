"""What one process can show: arrays, lifetimes, errors, asyncio, imports."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from patterns import pattern

import hmc


def test_memory_views_keep_it_alive() -> None:
    memory = hmc.Memory(1 << 16)
    memory.numpy()[:] = pattern(1 << 16, 1)
    view = memory[4096:8192].numpy()
    tensor = np.from_dlpack(memory)
    del memory
    gc.collect()
    assert np.array_equal(view, pattern(1 << 16, 1)[4096:8192])
    assert np.array_equal(tensor, pattern(1 << 16, 1))


def test_slices_refuse_what_python_would_clip() -> None:
    memory = hmc.Memory(100)
    assert len(memory[10:]) == 90
    assert len(memory[-10:]) == 10
    for bad in (slice(0, 101), slice(50, 40), slice(0, 100, 2)):
        with pytest.raises(hmc.InvalidArgumentError):
            memory[bad]


@pytest.mark.parametrize(
    "array",
    [np.zeros((8, 8))[:, ::2], np.array([object()]), np.frombuffer(b"read only", np.uint8), 3, "text"],
    ids=["strided", "objects", "read only", "number", "text"],
)
def test_bad_arrays_are_refused(array: object) -> None:
    with hmc.Context() as ctx, pytest.raises(hmc.InvalidArgumentError):
        ctx.register(array)


def test_errors_are_builtins_too() -> None:
    with hmc.Context() as ctx:
        with pytest.raises(TimeoutError):
            ctx.accept(timeout=0.05)
        with pytest.raises(ValueError, match="timeout"):
            ctx.accept(timeout=-1)
        with pytest.raises(ConnectionError):
            ctx.connect("unix:/nonexistent/hmc.sock", timeout=20)
        with pytest.raises(ValueError, match="known"):
            ctx.buffer(10, device="nosuch:0")
        with pytest.raises(TypeError):
            hmc.Context(no_such_option=1)
    with pytest.raises(hmc.ClosedError):
        ctx.buffer(10)


def test_listening_beyond_the_host_needs_a_key() -> None:
    with pytest.raises(hmc.HmcError, match="keygen"):
        hmc.Context(listen="tcp://0.0.0.0:0")
    with hmc.Context(listen="tcp://0.0.0.0:0", key=hmc.keygen()) as ctx:
        assert any(address.startswith("tcp://") for address in ctx.addresses)


def test_two_contexts_with_a_key_over_tcp() -> None:
    key = hmc.keygen()
    with hmc.Context(listen="tcp://127.0.0.1:0", key=key) as server, hmc.Context(key=key) as client:
        address = next(a for a in server.addresses if a.startswith("tcp://"))
        there = client.connect(address, timeout=20)
        here = server.accept(timeout=20)
        assert there.same_host
        assert here.same_host
        here.isend(pattern(1000, 3), tag=5)
        x = np.zeros(1000, np.uint8)
        assert there.recv(x, tag=5, timeout=20).bytes == 1000
        assert np.array_equal(x, pattern(1000, 3))
    with hmc.Context(listen="tcp://127.0.0.1:0", key=key) as server, hmc.Context(key=hmc.keygen()) as stranger:
        address = next(a for a in server.addresses if a.startswith("tcp://"))
        with pytest.raises(PermissionError):
            stranger.connect(address, timeout=20)


def test_asyncio_many_awaits() -> None:
    async def job() -> None:
        with hmc.Context() as a, hmc.Context() as b:
            peer = await a.connect_async(b.addresses[0], timeout=20)
            other = b.accept(timeout=20)
            target = b.buffer(1 << 20)
            b.publish("t", target)
            remote = await peer.lookup_async("t", timeout=20)
            source = a.register(pattern(1 << 20, 9))
            await asyncio.gather(*(peer.put(source[i : i + 4096], remote[i : i + 4096]) for i in range(0, 1 << 20, 4096)))
            assert np.array_equal(target.numpy(), pattern(1 << 20, 9))
            x = np.zeros(3, np.uint8)
            receiving = other.irecv(x, tag=1)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.ensure_future(_wait(receiving)), 0.1)
            assert receiving.done
            assert isinstance(receiving.error(), hmc.HmcCancelledError)

    async def _wait(work: hmc.Work) -> None:
        await work

    asyncio.run(job())


def test_gil_is_released_while_waiting() -> None:
    with hmc.Context() as ctx, hmc.Context() as other:
        accepted: list[hmc.Peer] = []
        thread = threading.Thread(target=lambda: accepted.append(ctx.accept(timeout=20)))
        thread.start()
        time.sleep(0.1)  # until it waits
        other.connect(ctx.addresses[0], timeout=20)  # what it waits for
        thread.join(40)
        assert len(accepted) == 1


def test_forked_child_is_refused() -> None:
    with hmc.Context() as ctx:
        child = os.fork()
        if child == 0:
            try:
                ctx.buffer(10)
            except hmc.ClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(ctx.buffer(10)) == 10


def test_import_starts_nothing() -> None:
    code = (
        "import os, threading; before = dict(os.environ); import hmc; "
        "assert len(os.listdir('/proc/self/task')) == 1, os.listdir('/proc/self/task'); assert dict(os.environ) == before; "
        "assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/", env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, timeout=60)


def test_every_public_name_is_documented() -> None:
    for name in hmc.__all__:
        value = getattr(hmc, name)
        if isinstance(value, (int, str)):
            continue
        assert value.__doc__, name
        if isinstance(value, type):
            for member, attribute in vars(value).items():
                if not member.startswith("_") and (callable(attribute) or isinstance(attribute, property)):
                    assert attribute.__doc__, f"{name}.{member}"


def test_payload_notifications_to_oneself_have_no_end() -> None:
    with hmc.init(0, 1, devices=["cpu", "cpu"]) as comm:
        first, second = comm.local
        for member in (first, second):
            for _ in range(5000):  # the window has 4096
                first.notify(member.rank, b"payload", timeout=20)
                assert member.notifications(timeout=20) == [(first.rank, b"payload")]
