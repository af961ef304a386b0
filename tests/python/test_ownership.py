"""Who keeps an array's memory, and when it is given back: the end of handles and of operations beside busy threads."""

from __future__ import annotations

import array
import gc
import mmap
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Pair

import hmc
from hmc import tensors


def grow(target: Any) -> None:
    target.append(1)


def close(target: Any) -> None:
    target.close()


@pytest.mark.parametrize(
    ("make", "change"),
    [(lambda: array.array("B", bytes(1000)), grow), (lambda: mmap.mmap(-1, 4096), close), (lambda: bytearray(1000), grow)],
    ids=["array.array", "mmap", "bytearray"],
)
def test_memory_in_use_can_neither_move_nor_be_unmapped(pair: Pair, make: Callable[[], Any], change: Callable[[Any], None]) -> None:
    received, registered = make(), make()
    work, buffer = pair.ab.irecv(received, tag=1), pair.a.register(registered)
    for target in (received, registered):
        with pytest.raises(BufferError):
            change(target)
    work.cancel()
    buffer.close(timeout=20)
    del work, buffer
    until = time.monotonic() + 20
    for target in (received, registered):
        while True:
            try:
                change(target)
                break
            except BufferError:  # the registration is freed in the background
                assert time.monotonic() < until
                time.sleep(0.01)


def test_arrays_are_freed_while_the_main_thread_waits_outside_of_hmc(pair: Pair) -> None:
    made: list[weakref.ref[Any]] = []
    kept: list[int] = []
    done = threading.Event()

    def exchange() -> None:
        for _ in range(100):
            sent, got = np.zeros(100_000, np.uint8), np.zeros(100_000, np.uint8)
            made.extend((weakref.ref(sent), weakref.ref(got)))
            works = [pair.ba.irecv(got, tag=2), pair.ab.isend(sent, tag=2)]
            hmc.wait_all(works, timeout=20)
        kept.append(sum(one() is not None for one in made))  # here: the main thread would free them first
        done.set()

    thread = threading.Thread(target=exchange)
    thread.start()
    done.wait()  # runs no bytecode meanwhile
    thread.join()
    assert kept[0] <= 20


LAST_MEMBER = """
import faulthandler, threading, time
faulthandler.dump_traceback_later(30, exit=True)
import hmc
inside = threading.Event()
def joined(peer):
    inside.set()
    for _ in range(20): time.sleep(0.02)   # takes the GIL each time
comm, other = hmc.init(0, 1, on_joined=joined), hmc.Context()
last = LAST
other.connect(comm.context.addresses[0], timeout=20)
inside.wait(20)
del comm
del last
print("ended")
"""


@pytest.mark.parametrize("last", ["comm.local[0]", "comm.local[0].batch()"])
def test_the_last_handle_of_a_communicator_ends_beside_a_callback(last: str) -> None:
    script = LAST_MEMBER.replace("LAST", last)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd="/")
    assert (result.stdout, result.stderr, result.returncode) == ("ended\n", "", 0)


def test_files_are_read_and_written_without_the_gil(tmp_path: Path) -> None:
    # A FIFO blocks its reader until there is a writer: a thread of this process.
    fifo = tmp_path / "topology"
    os.mkfifo(fifo)
    topology = hmc.Topology()
    topology.add_card("host", "cpu", 0)
    writer = threading.Thread(target=lambda: fifo.write_text(str(topology)))
    timer = threading.Timer(0.2, writer.start)
    timer.start()
    assert hmc.Topology.load(fifo) == topology
    timer.join()
    writer.join()


def test_fields_whose_names_have_a_capital_o_are_no_objects(pair: Pair) -> None:
    records = np.zeros(4, np.dtype([("POS", "f4"), ("O", "i4")]))
    records["O"] = [1, 2, 3, 4]
    for sent in (records.view(np.recarray), memoryview(records)):
        got = np.zeros_like(records)
        receiving = pair.ba.irecv(got, tag=3)
        pair.ab.send(sent, tag=3, timeout=20)
        receiving.wait(20)
        assert np.array_equal(got, records)
    with pytest.raises(hmc.InvalidArgumentError, match="Python objects"):
        pair.ab.send(memoryview(np.zeros(2, np.dtype([("x", "f4"), ("y", "O")]))), tag=3, timeout=1)
    gc.collect()


def test_notifications_take_every_kind_of_int(pair: Pair) -> None:
    for number in (3, np.int64(3), np.uint8(3)):
        pair.ab.notify(number)
    pair.ba.wait_notify(np.int32(3), count=np.int64(3), timeout=20)
    for wrong in (True, "3", 3.0, bytearray(b"3")):
        with pytest.raises(TypeError, match=r"notify must be None, an int .* or bytes"):
            pair.ab.notify(wrong)
    for beyond in (-1, 1 << 63, -(1 << 70)):
        with pytest.raises(hmc.InvalidArgumentError, match=r"from 0 to 2\*\*63 - 1, and is"):
            pair.ab.notify(beyond)


def test_dlpack_exports_to_the_own_device_alone() -> None:
    memory = hmc.Memory(64)
    for producer in (memory, tensors.view(memory, "float32", (4, 4))):
        assert np.from_dlpack(producer).nbytes == 64
        producer.__dlpack__(dl_device=(1, 0))
        with pytest.raises(BufferError, match=r"is not exported to DLPack device \(2, 0\)"):
            producer.__dlpack__(dl_device=(2, 0))
