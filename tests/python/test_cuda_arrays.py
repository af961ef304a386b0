"""__cuda_array_interface__ and DLPack of device memory, in and out, on simulated devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc
import hmc.testing

HELPERS = """
import ctypes, gc, threading, time
class View:
    def __init__(self, address, shape=(100,), typestr="|u1", read_only=False, **more):
        self.__cuda_array_interface__ = dict(shape=shape, typestr=typestr, data=(address, read_only), version=3, **more)
def address(memory):
    return memory.__cuda_array_interface__["data"][0]
def refused(call, *words):
    try:
        call()
    except hmc.InvalidArgumentError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"not refused: {words}")
"""


@pytest.mark.parametrize("vendor", ["cuda", "rocm", "hygon", "musa"])
def test_memory_goes_out_and_comes_back(run_script: Callable[..., str], vendor: str) -> None:
    run_script(HELPERS + f"device = {vendor + ':1'!r}" + """
memory = hmc.Memory(10_007, device)
memory.copy_from(pattern(10_007, 1))
face = memory[5:].__cuda_array_interface__
assert face == dict(shape=(10_002,), typestr="|u1", data=(address(memory) + 5, False), strides=None, stream=None, version=3)
back = hmc.Memory.from_array(View(**{"address": face["data"][0], "shape": face["shape"]}))
assert (back.device, back.nbytes) == (device, 10_002)
got = np.zeros(10_002, np.uint8)
back.copy_to(got)
assert np.array_equal(got, pattern(10_007, 1)[5:])
assert hmc.Memory(0, device).__cuda_array_interface__["data"] == (0, False)
assert memory[7:7].__cuda_array_interface__["data"] == (0, False)
with hmc.Context() as context:
    assert context.register(memory).__cuda_array_interface__ == memory.__cuda_array_interface__
""", hmc.testing.environment(vendor))  # fmt: skip


def test_memory_that_has_no_such_interface(run_script: Callable[..., str]) -> None:
    run_script("""
for device in ("cpu", "mlu:0"):
    memory = hmc.Memory(100, device)
    assert not hasattr(memory, "__cuda_array_interface__")
    try:
        memory.__cuda_array_interface__
    except AttributeError as error:
        assert device in str(error) and "__cuda_array_interface__" in str(error)
    assert memory.__dlpack_device__() == {"cpu": (1, 0), "mlu:0": (12, 0)}[device]
with hmc.Context() as context:
    assert not hasattr(context.buffer(100), "__cuda_array_interface__")
""", hmc.testing.environment("mlu"))  # fmt: skip


def test_what_comes_in_is_checked(run_script: Callable[..., str]) -> None:
    run_script(HELPERS + """
memory = hmc.Memory(10_000, "cuda:0")
memory.copy_from(pattern(10_000, 2))
at = address(memory)
def size(*arguments, **more):
    return hmc.Memory.from_array(View(*arguments, **more)).nbytes
# Every shape and type that is plain bytes, whatever their spelling.
assert size(at, (10, 4), "<f4") == 160 and size(at, (3, 0, 5), "<f8") == 0 and size(at, (), "<i8") == 8
assert size(at, (7,), "B") == 7 and size(at, (7,), "<M8[s]") == 56 and size(at, (7,), "<U3") == 84 and size(0, (0,)) == 0
assert size(at, (10, 4), "<f4", strides=(16, 4)) == 160 and size(at, (10, 4), "<f4", strides=None, mask=None) == 160
assert size(at, (1, 4), "<f4", strides=(999, 4)) == 16
for strides in ((32, 4), (4, 40), (-16, 4)):
    refused(lambda: size(at, (10, 4), "<f4", strides=strides), "strided")
refused(lambda: size(at, (10, 4), "<f4", strides=(4,)), "strides")
refused(lambda: size(at, mask=View(at)), "masked")
refused(lambda: size(at, (4,), "|O8"), "Python objects")
refused(lambda: size(at, (4,), "nonsense"), "nonsense")
refused(lambda: size(at, (-1,)), "shape")
refused(lambda: size(at, (1 << 40, 1 << 40)), "no memory holds")
refused(lambda: size(at, (), "<f18446744073709551615"), "no memory holds")
refused(lambda: size(None), "data")
refused(lambda: size(0, (5,)), "null")
refused(lambda: size(np.zeros(100, np.uint8).ctypes.data), "no device runtime")
for missing in ("shape", "typestr", "data"):
    view = View(at)
    del view.__cuda_array_interface__[missing]
    refused(lambda: hmc.Memory.from_array(view), missing)
view.__cuda_array_interface__ = 5
refused(lambda: hmc.Memory.from_array(view), "dict")
# Read-only is read.
got = np.zeros(100, np.uint8)
source = View(at, read_only=True)
hmc.Memory.from_array(source).copy_to(got)
assert np.array_equal(got, pattern(10_000, 2)[:100])
refused(lambda: hmc.Memory(100).copy_to(source), "read-only")
with hmc.Context() as context:
    refused(lambda: context.register(source), "read-only")
    assert context.register(source, access="r").device == "cuda:0"
# Beside the buffer protocol: the interface says where the memory is, unless that is the host.
class Both(bytearray):
    pass
both = Both(b"x" * 100)
both.__cuda_array_interface__ = View(at).__cuda_array_interface__
assert hmc.Memory.from_array(both).device == "cuda:0"
host = pattern(100, 3)
both.__cuda_array_interface__ = View(host.ctypes.data).__cuda_array_interface__
assert hmc.Memory.from_array(both).device == "cpu"
""", hmc.testing.environment("cuda"))  # fmt: skip


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_the_declared_stream_comes_first(run_script: Callable[..., str], vendor: str) -> None:
    source = (
        HELPERS
        + f"vendor = {vendor!r}"
        + """
from test_streams import CALLER
exec(CALLER)
memory, target = hmc.Memory(5000, vendor + ":0"), hmc.Memory(5000, vendor + ":0")
caller = Caller(vendor)
own = caller.stream
class Exporter:
    # DLPack from a producer that has no stream of its own to name: what is queued on the default one comes first.
    def __dlpack__(self, **_):
        return memory.__dlpack__()
    def __dlpack_device__(self):
        return memory.__dlpack_device__()
class Number:
    def __int__(self):
        return own
for value, stream in enumerate([own, Number(), 1, 2, "dlpack"], 1):
    # 1 and 2: the default stream, and the thread's, which the simulation has the same.
    caller.stream = own if stream in (own,) or isinstance(stream, Number) else None
    for copy_to in (False, True):
        caller.gate.clear()
        caller.hold()
        array = Exporter() if stream == "dlpack" else View(address(memory), (5000,), stream=stream)
        caller.fill(address(memory), value, 5000)
        copied = threading.Event()
        def copy():
            # Out of memory that is still to be filled; or into it, after that.
            target.copy_to(array) if copy_to else target.copy_from(array)
            copied.set()
        target.fill(100 + value)
        thread = threading.Thread(target=copy)
        thread.start()
        assert not copied.wait(0.05), (stream, "did not wait")
        caller.gate.set()
        thread.join(20)
        assert copied.is_set()
        got = np.zeros(5000, np.uint8)
        (memory if copy_to else target).copy_to(got)
        assert (got == (100 + value if copy_to else value)).all(), (stream, copy_to)
"""
    )
    run_script(source, hmc.testing.environment(vendor))


def test_exports_keep_the_memory(run_script: Callable[..., str]) -> None:
    run_script(HELPERS + """
class Holder:
    # As consumers of the protocol do: they keep the object that gave the interface.
    def __init__(self, owner):
        self.owner, self.__cuda_array_interface__ = owner, owner.__cuda_array_interface__
memory = hmc.Memory(3 << 20, "cuda:0")
memory.copy_from(pattern(3 << 20, 4))
held = Holder(memory[4096:])
capsule = memory.__dlpack__()
del memory
gc.collect()
again = hmc.Memory(3 << 20, "cuda:0")
again.fill(0)
got = np.zeros((3 << 20) - 4096, np.uint8)
hmc.Memory.from_array(held).copy_to(got)
assert np.array_equal(got, pattern(3 << 20, 4)[4096:])
""", hmc.testing.environment("cuda"))  # fmt: skip
