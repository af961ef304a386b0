"""Arrays, and sequences of them, that change while HMC looks at them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from conftest import Pair

import hmc
from hmc import layout


@contextlib.contextmanager
def written(array: Any, values: tuple[int, int]) -> Iterator[None]:
    """Another thread writes these into the array's last element in turn."""
    ends = threading.Event()

    def write() -> None:
        while not ends.is_set():
            for value in values:
                array[-1] = value

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_a_sequence_that_makes_its_arrays_for_each_look(run_script: Callable[..., str]) -> None:
    run_script(
        """
from hmc.layout import Layout, convert, digest
layout = Layout("L=1 B=256 H=4 N=16 (kv D=64) f32")
kept = np.arange(layout.buffer_bytes // 4, dtype=np.float32)
class Fresh(list):
    def __getitem__(self, at):
        return kept.copy()
blocks = list(range(256))
assert digest(layout, Fresh([kept]), blocks, 4096) == digest(layout, kept, blocks, 4096)
target = np.zeros_like(kept)
convert(layout, Fresh([kept]), blocks, layout, target, blocks, 4096)
assert np.array_equal(target, kept)
""",
        {},
    )


# An exporter in C that copies for each export; from Python 3.12 on, __buffer__ can do the same.
EXPORTER = """
import ctypes
class View(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("rest", ctypes.c_ssize_t * 7)]
python, c = ctypes.pythonapi, ctypes.CDLL(None)
c.mmap.restype = ctypes.c_void_p
pointer, number = ctypes.c_void_p, ctypes.c_int
c.mmap.argtypes = [pointer, ctypes.c_size_t, number, number, number, ctypes.c_long]
c.munmap.argtypes = [pointer, ctypes.c_size_t]
python.PyBuffer_FillInfo.argtypes = [pointer, ctypes.py_object, pointer, ctypes.c_ssize_t, number, number]
size = 1 << 20
exports = 0
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
def get(owner, view, flags):
    global exports
    exports += 1
    memory = c.mmap(None, size, 3, 0x22, -1, 0)
    ctypes.memset(memory, 7, size)
    return python.PyBuffer_FillInfo(view, owner, memory, size, 0, flags)
@ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
def release(owner, view):
    global exports
    exports -= 1
    c.munmap(View.from_address(view).buf, size)
class Exporter:
    pass
slots = ctypes.c_void_p.from_address(id(Exporter) + 160).value  # PyTypeObject.tp_as_buffer
ctypes.c_void_p.from_address(slots).value = ctypes.cast(get, ctypes.c_void_p).value
ctypes.c_void_p.from_address(slots + 8).value = ctypes.cast(release, ctypes.c_void_p).value
"""


def test_an_object_that_exports_other_memory_each_time(run_script: Callable[..., str]) -> None:
    run_script(
        EXPORTER
        + """
with hmc.init(0, 1) as comm:
    got = np.zeros(size, np.uint8)
    for _ in range(3):
        work = comm.irecv(got, 0)
        comm.send(Exporter(), 0, timeout=20)
        work.wait(20)
        assert np.all(got == 7)
        got[:] = 0
    memory = hmc.Memory.from_array(Exporter())
    assert exports == 1, exports
    assert np.all(memory.numpy() == 7)
    del memory
comm.context.close()
for _ in range(10): sum(range(1000))
assert exports == 0, exports
""",
        {},
    )


def test_blocks_are_those_that_were_checked(pair: Pair) -> None:
    count, block = 1 << 19, 8
    size = count * block
    local, shared = pair.a.buffer(size + block), pair.b.buffer(size)
    shared.memory.fill(7)
    remote = pair.ab.import_buffer(shared.descriptor(), timeout=20)
    fixed = np.arange(count, dtype=np.uint64) * block
    offsets = fixed.copy()
    with written(offsets, (size, size - block)):  # beyond the slice, within it
        for _ in range(60):
            try:
                batch = pair.ab.prepare_blocks([(local[:size], offsets, remote, fixed)], block=block)
            except hmc.InvalidArgumentError:
                continue
            pair.ab.get_blocks(batch).wait(20)
            assert not np.any(local.numpy()[size:])


def test_blocks_of_a_cache_are_those_that_were_checked() -> None:
    count = 1 << 19
    cache = layout.Layout(f"L=1 B={count} H=1 N=1 (kv D=4) f32")
    fixed = np.arange(count, dtype=np.uint64)
    blocks = fixed.copy()
    with written(blocks, (1 << 40, count - 1)):
        for _ in range(60):
            try:
                found = layout.runs(cache, blocks, cache, fixed, count)
            except hmc.InvalidArgumentError:
                continue
            assert all(one.source_offsets.max() < cache.buffer_bytes for one in found)
