"""The simulated vendors, each driven through its ABI by a client that shares no code with HMC."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import vendors
from abi import ILLEGAL, INVALID, NO_MEMORY, Failure, address
from harness import child, expect, pattern, run
from vendors import load

LOADED: dict[str, Any] = {}
MIB = 1 << 20


@pytest.fixture(params=vendors.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if vendors.library_path(request.param) is None:
        pytest.skip(f"libhmcsim_{request.param}.so is not built; HMC_SIM_DIR names its folder")
    return str(request.param)


@pytest.fixture
def vendor(name: str) -> Iterator[Any]:
    if name not in LOADED:
        LOADED[name] = load(name)
    one = LOADED[name]
    one.use(0)
    before = one.memory()
    yield one
    one.lib.hmcsim_reset()
    assert one.memory() == before, "device memory was not given back"


def test_devices(vendor: Any) -> None:
    assert vendor.count() == 2
    assert vendor.lib.hmcsim_description().startswith(b"simulated ")
    assert "Simulated" in vendor.device_name(1)
    assert vendor.pci(0) != vendor.pci(1)
    assert vendor.pci(0).startswith("0000:")
    assert vendor.memory()[1] == 1 << 30


def test_pci_addresses_differ_between_vendors() -> None:
    names = [name for name in vendors.NAMES if vendors.library_path(name)]
    addresses = [run(name, "print(v.pci(0), v.pci(1))") for name in names]
    assert len(set(" ".join(addresses).split())) == 2 * len(names)


def test_visible_devices(name: str) -> None:
    variable = {"cuda": "CUDA", "mlu": "MLU", "musa": "MUSA"}.get(name, "HIP") + "_VISIBLE_DEVICES"
    physical = run(name, "print(*[v.pci(i) for i in range(v.count())])", HMC_SIM_DEVICES="4").split()
    assert len(physical) == 4
    shown = run(name, "print(*[v.pci(i) for i in range(v.count())])", HMC_SIM_DEVICES="4", **{variable: "2,0"}).split()
    assert shown == [physical[2], physical[0]]


def test_no_devices(name: str) -> None:
    errors = child(name, "v.count()", HMC_SIM_DEVICES="0").communicate(timeout=60)[1]
    assert f"returned {100004 if name == 'mlu' else 100}\n" in errors


@pytest.mark.parametrize("access", ["ctypes.string_at(p + 100, 1)", "ctypes.memset(p, 1, 1)"])
def test_the_host_faults_on_device_memory(name: str, access: str) -> None:
    process = child(name, f"p = v.alloc(5000); v.fill(p, 1, 5000)\n{access}")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGSEGV or "SEGV on unknown address" in errors  # the latter under a sanitizer


def test_system_calls_refuse_device_memory(vendor: Any) -> None:
    pointer = vendor.alloc(5000)
    reader, writer = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.write(writer, ctypes.c_void_p(pointer), ctypes.c_size_t(16)) == -1
    assert ctypes.get_errno() == 14  # EFAULT
    os.close(reader)
    os.close(writer)
    vendor.free(pointer)


@pytest.mark.parametrize(("size", "offset"), [(1, 0), (4096, 1), (100_003, 4097), (3 * MIB + 5, 12_345)])
def test_copies_at_offsets(vendor: Any, size: int, offset: int) -> None:
    data = pattern(size, offset)
    source = ctypes.create_string_buffer(data, size)
    result = ctypes.create_string_buffer(size + 2)
    first, second = vendor.alloc(size + offset), vendor.alloc(size + offset + 3)
    vendor.fill(second, 0x5A, size + offset + 3)
    vendor.to_device(first + offset, address(source), size)
    stream = vendor.stream()
    vendor.copy(second + offset + 1, first + offset, size, stream, "d2d")
    vendor.stream_sync(stream)
    vendor.to_host(address(result), second + offset, size + 2)
    assert result.raw == b"\x5a" + data + b"\x5a"
    vendor.stream_destroy(stream)
    vendor.free(first)
    vendor.free(second)


def test_allocations_are_aligned_zeroed_and_bounded(vendor: Any) -> None:
    pointers = [vendor.alloc(size) for size in (1, 511, 70_000)]
    assert all(pointer % 512 == 0 for pointer in pointers)
    result = ctypes.create_string_buffer(b"x" * 70_000, 70_000)
    vendor.to_host(address(result), pointers[2], 70_000)
    assert result.raw == bytes(70_000)
    expect(vendor, NO_MEMORY, vendor.alloc, 1 << 30)
    expect(vendor, NO_MEMORY, vendor.alloc, 1 << 62)
    expect(vendor, INVALID, vendor.to_host, address(result), pointers[0], 2)  # past the end
    expect(vendor, INVALID, vendor.free, pointers[2] + 4096)
    for pointer in pointers:
        vendor.free(pointer)
    expect(vendor, INVALID, vendor.free, pointers[0])


def test_attributes(vendor: Any) -> None:
    vendor.use(1)
    pointer = vendor.alloc(10_000)
    assert vendor.attributes(pointer + 9_999) == ("device", 1)
    assert vendor.address_range(pointer + 5_000) == (pointer, 10_000)
    pinned = vendor.host_alloc(10_000)
    assert vendor.attributes(pinned + 17)[0] == "host"
    ctypes.memset(pinned, 7, 10_000)  # the host may
    ordinary = ctypes.create_string_buffer(100)
    assert vendor.attributes(address(ordinary))[0] == "unknown"
    vendor.host_free(pinned)
    assert vendor.attributes(pinned)[0] == "unknown"
    vendor.free(pointer)
    assert vendor.attributes(pointer)[0] == "unknown"


def test_pinning(vendor: Any) -> None:
    if not vendor.has_pin:
        pytest.skip("this ABI registers no host memory")
    buffer = ctypes.create_string_buffer(100_000)
    start = address(buffer, 64)
    vendor.pin(start, 50_000)
    assert vendor.attributes(start + 49_999)[0] == "host"
    assert vendor.attributes(start + 50_000)[0] == "unknown"
    for overlap in (start, start - 10):
        with pytest.raises(Failure, match="712"):
            vendor.pin(overlap, 100)
    vendor.unpin(start)
    with pytest.raises(Failure, match="713"):
        vendor.unpin(start)
    pointer = vendor.alloc(100)
    expect(vendor, INVALID, vendor.pin, pointer, 100)
    expect(vendor, INVALID, vendor.pin, 4096, 100)
    vendor.free(pointer)


def test_copies_are_asynchronous(vendor: Any) -> None:
    data = pattern(100_003, 1)
    source, result = ctypes.create_string_buffer(data, len(data)), ctypes.create_string_buffer(len(data))
    pointer, stream, other = vendor.alloc(len(data)), vendor.stream(), vendor.stream()
    copied, returned = vendor.event(), vendor.event()
    assert vendor.done(copied), "an event without work is over"
    gate = threading.Event()
    hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(60))
    vendor.call_host(stream, hold)
    vendor.copy(pointer, address(source), len(data), stream, "h2d")
    vendor.record(copied, stream)
    vendor.stream_wait(other, copied)
    vendor.copy(address(result), pointer, len(data), other, "d2h")
    vendor.record(returned, other)
    assert not vendor.done(copied)
    assert not vendor.done(returned)
    assert result.raw == bytes(len(data))
    gate.set()
    vendor.event_sync(copied)
    while not vendor.done(returned):
        pass
    assert result.raw == data
    vendor.stream_destroy(stream)
    vendor.stream_destroy(other)
    vendor.free(pointer)


def test_the_delay_of_operations(name: str) -> None:
    run(name, """
        p, s, e = v.alloc(5000), v.stream(), v.event()
        source = ctypes.create_string_buffer(5000)
        start = time.monotonic()
        v.copy(p, address(source), 5000, s, "h2d")
        v.copy(p, address(source), 5000, s, "h2d")
        v.record(e, s)
        v.event_sync(e)
        assert time.monotonic() - start >= 0.2
    """, HMC_SIM_DELAY_US="100000")  # fmt: skip


def test_host_functions_run_in_order(vendor: Any) -> None:
    seen: list[int] = []
    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    stream = vendor.stream()
    functions = [called(lambda _, index=index: seen.append(index)) for index in range(5)]
    for function in functions:
        vendor.call_host(stream, function)
    vendor.stream_sync(stream)
    assert seen == list(range(5))
    vendor.stream_destroy(stream)


def test_memory_that_cannot_be_accessed_is_an_error(vendor: Any) -> None:
    pointer = vendor.alloc(2 * MIB)
    # What another vendor's device memory looks like from here.
    foreign = mmap.mmap(-1, 2 * MIB)
    start = ctypes.addressof(ctypes.c_char.from_buffer(foreign))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(start + MIB), ctypes.c_size_t(MIB), 0) == 0
    expect(vendor, INVALID, vendor.to_device, pointer, start, 2 * MIB)
    expect(vendor, INVALID, vendor.to_host, start, pointer, 2 * MIB)
    expect(vendor, INVALID, vendor.to_host, 4096, pointer, 8)
    stream, before, after = vendor.stream(), vendor.event(), vendor.event()
    vendor.copy(pointer, start, MIB, stream, "h2d")
    vendor.record(before, stream)
    vendor.copy(pointer, start, 2 * MIB, stream, "h2d")
    vendor.record(after, stream)
    vendor.event_sync(before)
    expect(vendor, ILLEGAL, vendor.event_sync, after)
    expect(vendor, ILLEGAL, vendor.done, after)
    expect(vendor, ILLEGAL, vendor.stream_sync, stream)
    vendor.lib.hmcsim_reset()
    vendor.stream_sync(stream)
    assert libc.mprotect(ctypes.c_void_p(start + MIB), ctypes.c_size_t(MIB), 3) == 0
    vendor.stream_destroy(stream)
    vendor.free(pointer)


def test_injected_errors(vendor: Any, name: str) -> None:
    vendor.fail(vendor.alloc_call, 2, 77)
    pointer = vendor.alloc(100)
    with pytest.raises(Failure, match="returned 77"):
        vendor.alloc(100)
    vendor.free(vendor.alloc(100))
    vendor.fail(vendor.alloc_call, 1, 77)
    vendor.lib.hmcsim_reset()
    vendor.free(vendor.alloc(100))
    vendor.free(pointer)
    source = """
        codes = []
        for attempt in range(4):
            try:
                v.free(v.alloc(100))
                codes.append(0)
            except Failure as failure:
                codes.append(failure.code)
        print(*codes)
    """
    call = vendor.alloc_call
    assert run(name, source, HMC_SIM_FAIL=f"noSuchCall:1=5,{call}:3=700,{call}:1=2") == "2 0 700 0\n"


def test_ipc(vendor: Any, name: str) -> None:
    size = 300_001
    data, reply = pattern(size, 1), pattern(size, 2)
    source, result = ctypes.create_string_buffer(data, size), ctypes.create_string_buffer(size)
    pointer = vendor.alloc(size)
    vendor.to_device(pointer, address(source), size)
    if name == "mlu":
        expect(vendor, INVALID, vendor.export, pointer + 1)
        handle = vendor.export(pointer)
        assert len(handle) == 8
    else:
        handle = vendor.export(pointer + 4097)
        assert len(handle) == 64
    with pytest.raises(Failure):
        vendor.open(handle)  # in the process that made it
    opener = child(name, f"""
        handle = bytes.fromhex(sys.argv[1])
        v.use(1)
        free = v.memory()
        p = v.open(handle)
        assert v.open(handle) == p and v.memory() == free
        v.close(p)
        assert v.attributes(p + 100) == ("device", 1) and v.address_range(p + 5) == (p, {size})
        buffer = ctypes.create_string_buffer({size})
        v.to_host(address(buffer), p, {size})
        assert buffer.raw == pattern({size}, 1)
        buffer.raw = pattern({size}, 2)
        v.to_device(p, address(buffer), {size})
        def refused(call, *arguments):
            try:
                call(*arguments)
            except Failure:
                return True
        assert refused(v.free, p) and refused(v.export, p)
        v.close(p)
        assert refused(v.close, p) and v.attributes(p)[0] == "unknown"
        print("open", flush=True)
        sys.stdin.readline()
        assert refused(v.open, handle)
        print("gone", flush=True)
    """, [handle.hex()])  # fmt: skip
    assert opener.stdout is not None
    assert opener.stdin is not None
    assert opener.stdout.readline() == "open\n", opener.communicate()[1]
    vendor.to_host(address(result), pointer, size)
    assert result.raw == reply
    vendor.free(pointer)
    output, errors = opener.communicate("freed\n", timeout=60)
    assert output == "gone\n", errors


def test_a_handle_of_a_dead_process(vendor: Any, name: str) -> None:
    handle = bytes.fromhex(run(name, "print(v.export(v.alloc(100)).hex())"))
    with pytest.raises(Failure):
        vendor.open(handle)
    with pytest.raises(Failure):
        vendor.open(bytes(len(handle)))


def test_imported_memory_outlives_its_owner(vendor: Any, name: str) -> None:
    owner = child(name, """
        data = ctypes.create_string_buffer(pattern(70_001, 3), 70_001)
        p = v.alloc(70_001)
        v.to_device(p, address(data), 70_001)
        print(v.export(p).hex(), flush=True)
        sys.stdin.readline()
    """)  # fmt: skip
    assert owner.stdout is not None
    pointer = vendor.open(bytes.fromhex(owner.stdout.readline()))
    owner.communicate("\n", timeout=60)
    result = ctypes.create_string_buffer(70_001)
    vendor.to_host(address(result), pointer, 70_001)
    assert result.raw == pattern(70_001, 3)
    vendor.close(pointer)


def test_vendors_do_not_open_each_others_handles() -> None:
    if not all(vendors.library_path(name) for name in ("rocm", "rocm5")):
        pytest.skip("not built")
    owner = child("rocm5", "print(v.export(v.alloc(100)).hex(), flush=True); sys.stdin.readline()")
    assert owner.stdout is not None
    handle = bytes.fromhex(owner.stdout.readline())
    with pytest.raises(Failure, match="400"):
        load("rocm").open(handle)
    owner.communicate("\n", timeout=60)


def test_freeing_waits_for_the_streams(name: str) -> None:
    run(name, """
        p, s, result = v.alloc(5000), v.stream(), ctypes.create_string_buffer(5000)
        v.fill(p, 7, 5000)
        start = time.monotonic()
        v.copy(address(result), p, 5000, s, "d2h")
        v.free(p)
        assert time.monotonic() - start >= 0.2 and result.raw == bytes([7]) * 5000
    """, HMC_SIM_DELAY_US="200000")  # fmt: skip


def test_each_thread_has_its_device(vendor: Any) -> None:
    places: list[int] = []

    def work() -> None:
        vendor.use(1)
        pointer = vendor.alloc(100)
        places.append(vendor.attributes(pointer)[1])
        vendor.free(pointer)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    pointer = vendor.alloc(100)
    assert [*places, vendor.attributes(pointer)[1]] == [1, 0]
    vendor.free(pointer)
