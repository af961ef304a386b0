"""Arrays that cannot be transferred are refused by name; those that can are kept while HMC uses them."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Pair, read_only
from patterns import pattern

import hmc

REFUSED = (hmc.InvalidArgumentError, TypeError)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((8, 8), np.uint8)[:, ::2],
        np.zeros(64, np.uint8)[::-1],
        np.asfortranarray(np.zeros((2, 3))),
        np.broadcast_to(np.zeros(1, np.uint8), 16),
        np.array([object()]),
        np.array(["text"], dtype=object),
        7,
        None,
        "text",
        [1, 2, 3],
        object(),
    ],
    ids=["strided", "reversed", "Fortran", "broadcast", "objects", "array of text", "number", "None", "text", "list", "object"],
)
def test_arrays_that_are_no_plain_bytes(pair: Pair, array: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: pair.ab.isend(array),
        lambda: pair.ab.send(array, timeout=1),
        lambda: pair.ab.irecv(array),
        lambda: pair.ab.recv(array, timeout=1),
        lambda: pair.a.register(array),
    ]
    for call in calls:
        with pytest.raises(REFUSED):
            call()


def test_read_only_memory_is_never_written(pair: Pair) -> None:
    for array in (read_only(100), b"bytes", memoryview(b"view")):
        with pytest.raises(REFUSED):
            pair.ab.irecv(array)
        with pytest.raises(REFUSED):
            pair.a.register(array)
        # It can be sent, and registered for reading.
        got = np.zeros(len(array), np.uint8)
        receiving = pair.ba.irecv(got, tag=1)
        pair.ab.send(array, tag=1, timeout=20)
        receiving.wait(20)
        assert bytes(got) == bytes(array)
    shared = pair.b.register(read_only(5000), access="r")
    remote = pair.ab.import_buffer(shared.descriptor(), timeout=20)
    with pytest.raises(hmc.InvalidArgumentError, match="read"):
        pair.ab.put(pair.local[:5000], remote)
    pair.ab.get(pair.local[:5000], remote).wait(20)
    assert np.array_equal(pair.local.numpy()[:5000], pattern(5000, 4))
    with pytest.raises(REFUSED):
        pair.a.register(np.zeros(8, np.uint8), access="w")


@pytest.mark.parametrize("kind", ["array", "bytes", "memoryview"])
def test_views_of_read_only_memory_are_read_only(pair: Pair, kind: str) -> None:
    """Everything that could write it refuses, and no byte changes."""
    original = pattern(5000, 4)
    source: Any = {"array": read_only(5000), "bytes": original.tobytes(), "memoryview": memoryview(original.tobytes())}[kind]
    registered, memory = pair.b.register(source, access="r"), hmc.Memory.from_array(source)
    for part in (registered, registered[7:4003], registered.memory, memory, memory[7:4003]):
        array = part.numpy()
        assert not array.flags.writeable
        assert memoryview(part).readonly
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        assert not np.from_dlpack(part).flags.writeable
        with pytest.raises(BufferError, match="DLPack 1"):
            part.__dlpack__()
        with pytest.raises(hmc.InvalidArgumentError, match="read-only"):
            pair.ba.irecv(part, tag=5)
    for write in (lambda: memory.fill(0), lambda: memory.copy_from(original), lambda: pair.b.register(memory)):
        with pytest.raises(hmc.InvalidArgumentError, match="read-only"):
            write()
    lent = pair.a.register(pattern(5000, 9))
    remote = pair.ba.import_buffer(lent.descriptor(), timeout=20)
    with pytest.raises(hmc.InvalidArgumentError, match="read-only"):
        pair.ba.get(registered, remote)
    batch = pair.ba.prepare_blocks([(registered, [0, 100], remote, [200, 0])], 50)
    with pytest.raises(hmc.InvalidArgumentError, match="read-only"):
        pair.ba.get_blocks(batch)
    pair.ba.put_blocks(batch).wait(20)  # it is a source like others
    pair.ba.put(registered, remote).wait(20)
    assert np.array_equal(lent.numpy(), original)
    assert bytes(source) == original.tobytes()


def test_memory_that_peers_may_only_read_is_writable_here(pair: Pair) -> None:
    own = pattern(5000, 4)
    for buffer in (pair.b.register(own, access="r"), pair.b.buffer(5000, access="r")):
        buffer.numpy()[:] = pattern(5000, 5)
        remote = pair.ab.import_buffer(buffer.descriptor(), timeout=20)
        pair.ab.get(pair.local[:5000], remote).wait(20)
        assert np.array_equal(pair.local.numpy()[:5000], pattern(5000, 5))
    assert np.array_equal(own, pattern(5000, 5))


def test_every_plain_type_and_shape_goes_through(pair: Pair) -> None:
    arrays: list[Any] = [
        np.array(3.5),
        np.zeros((0, 4), np.int32),
        pattern(800, 2).view(">f8"),
        pattern(120, 3).view([("x", "i4"), ("y", "f8")]),
        pattern(64, 5).view(bool),
        pattern(64, 5).view("M8[s]"),
        bytearray(pattern(50_000, 6)),
    ]
    for array in arrays:
        raw = bytes(array) if isinstance(array, bytearray) else array.tobytes()
        got = np.full(len(raw), 7, np.uint8)
        receiving = pair.ba.irecv(got, tag=2)
        pair.ab.send(array, tag=2, timeout=20)
        receiving.wait(20)
        assert receiving.info.bytes == len(raw)
        assert got.tobytes() == raw


def test_memory_that_goes_away_under_an_operation(pair: Pair) -> None:
    # Temporaries are kept until the operation ends.
    sending = [pair.ab.isend(pattern(200_000, seed), tag=3) for seed in range(5)]
    targets = [np.zeros(200_000, np.uint8) for _ in range(5)]
    gc.collect()
    for seed, target in enumerate(targets):
        pair.ba.recv(target, tag=3, timeout=20)
        assert np.array_equal(target, pattern(200_000, seed))
    hmc.wait_all(sending, timeout=20)
    # What is exported cannot be resized below HMC's feet.
    growing = bytearray(1000)
    receiving = pair.ab.irecv(growing, tag=4)
    registered = pair.a.register(growing)
    with pytest.raises(BufferError):
        growing.extend(b"more")
    receiving.cancel()
    registered.close(timeout=20)
    view = memoryview(bytearray(100))
    view.release()
    with pytest.raises((*REFUSED, ValueError)):
        pair.ab.isend(view)
    # A registration keeps its array.
    registered = pair.b.register(pattern(5000, 8))
    remote = pair.ab.import_buffer(registered.descriptor(), timeout=20)
    gc.collect()
    pair.ab.get(pair.local[:5000], remote).wait(20)
    assert np.array_equal(pair.local.numpy()[:5000], pattern(5000, 8))


class _DlTensor(ctypes.Structure):
    """DLManagedTensor of DLPack, of CPU memory."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class ByDlpack:
    def __init__(self, shape: list[int], bits: int = 8, lanes: int = 1) -> None:
        self._bytes = np.arange(256, dtype=np.uint8)
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        device = (ctypes.c_int32 * 2)(1, 0)
        self._tensor = _DlTensor(self._bytes.ctypes.data, device, len(shape), 1, bits, lanes, self._shape)

    def __dlpack__(self, **_: object) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize("shape", [[-1], [-5, -5], [1 << 62, 1 << 62], [1 << 32, 1 << 32], [0, -1]])
def test_shapes_that_no_memory_holds(shape: list[int]) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match="a shape that no memory holds"):
        hmc.Memory.from_array(ByDlpack(shape))


@pytest.mark.parametrize(("bits", "lanes"), [(4, 1), (1, 1), (0, 1), (8, 0), (12, 1)])
def test_elements_without_bytes_of_their_own(bits: int, lanes: int) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match=f"elements have {bits * lanes} bits"):
        hmc.Memory.from_array(ByDlpack([100], bits, lanes))


@pytest.mark.parametrize(
    ("shape", "bits", "lanes", "nbytes"), [([100], 8, 1, 100), ([10], 4, 2, 10), ([0, 1 << 62], 8, 1, 0), ([], 64, 1, 8)]
)
def test_sizes_by_dlpack(shape: list[int], bits: int, lanes: int, nbytes: int) -> None:
    memory = hmc.Memory.from_array(ByDlpack(shape, bits, lanes))
    out = np.zeros(nbytes, np.uint8)
    if nbytes:
        memory.copy_to(out)
    assert memory.nbytes == nbytes
    assert (out == np.arange(nbytes)).all()
