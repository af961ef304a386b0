"""Tensors of torch on simulated devices: by DLPack's C interface as by the protocols, in the same words where they are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc.testing

DLPACK = {"cuda": 2, "rocm": 10}

HELPERS = """
import ctypes, gc, sys, threading, time, weakref
import pretended_torch as pretended
def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error), str(error)
"""


def source(vendor: str, body: str, install: str = "") -> str:
    start = f"vendor, claims = {vendor!r}, {DLPACK.get(vendor, 12)}\nTensor, ByProtocols, streams = pretended.install({install})\n"
    return HELPERS + start + body


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_a_tensor_is_read_without_the_protocols(run_script: Callable[..., str], vendor: str) -> None:
    """Torch calls HIP's devices "cuda" too: the runtimes know whose the memory is."""
    body = """
memory = hmc.Memory(4096, vendor + ":1")
memory.copy_from(pattern(4096, 1))
looks = ["tensor_of", "requires_grad", "is_neg", "storage_offset", "untyped_storage", "raw stream of 1"]
for kind, expected in ((Tensor, looks), (ByProtocols, None)):
    tensor = kind(memory, (16, 64), "float32", claims=claims)
    pretended.asked.clear()
    taken = hmc.Memory.from_array(tensor)
    if expected:
        assert pretended.asked == expected, pretended.asked
    else:
        assert "current_stream of cuda:1" in pretended.asked and "tensor_of" not in pretended.asked, pretended.asked
    got = np.zeros(4096, np.uint8)
    taken.copy_to(got)
    assert (taken.device, taken.nbytes) == (vendor + ":1", 4096) and np.array_equal(got, pattern(4096, 1))
    # Behind the start of the memory, one element, strides that say what they need not.
    part = kind(memory, (3, 1), "float32", claims=claims, strides=(1, 999), address=tensor.address + 100)
    got = np.zeros(12, np.uint8)
    hmc.Memory.from_array(part).copy_to(got)
    assert np.array_equal(got, pattern(4096, 1)[100:112])
"""
    run_script(source(vendor, body), hmc.testing.environment(vendor))


def test_a_reduction_in_place_looks_at_the_tensor_once(run_script: Callable[..., str]) -> None:
    body = """
tensor = Tensor(hmc.Memory(64, "cuda:0"), (16,), "float32")
comm = hmc.init(devices=["cuda:0"])
pretended.asked.clear()
comm.iall_reduce(tensor, stream=pretended.Stream(1)).wait(30)
assert pretended.asked.count("tensor_of") == 1, pretended.asked
pretended.asked.clear()
comm.iall_reduce(tensor, Tensor(hmc.Memory(64, "cuda:0"), (16,), "float32")).wait(30)
assert pretended.asked.count("tensor_of") == 2, pretended.asked
"""
    run_script(source("cuda", body), hmc.testing.environment("cuda"))


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_refusals_are_those_of_the_protocols(run_script: Callable[..., str], vendor: str) -> None:
    body = """
memory, host = hmc.Memory(4096, vendor + ":0"), pattern(4096, 2)
cases = {
    "requires grad": dict(flags=("requires_grad",)),
    "negative": dict(flags=("is_neg",)),
    "conjugate": dict(shape=(8,), dtype="complex64", flags=("is_conj",)),
    "negative and requires grad": dict(flags=("is_neg", "requires_grad")),
    "strided": dict(shape=(4, 4), strides=(8, 1)),
    "transposed": dict(shape=(2, 3), strides=(1, 2)),
    "no storage": dict(address=0),
    "of the host": dict(address=host.ctypes.data),
    "empty": dict(shape=(0, 7), address=0),
    "empty and strided": dict(shape=(3, 0), strides=(9, 5)),
    "plain": dict(),
    "complex": dict(shape=(8,), dtype="complex64"),
}
words = {"strided": "strided", "negative": "resolve_neg", "conjugate": "resolve_conj", "requires grad": "require gradient",
         "of the host": "no device runtime", "no storage": "null"}
with hmc.init(0, 1) as comm:
    for name, case in cases.items():
        made = [kind(memory, case.get("shape", (8,)), claims=claims, **{k: v for k, v in case.items() if k != "shape"})
                for kind in (Tensor, ByProtocols)]
        for what, call in {
            "from_array": lambda t: (lambda m: (m.device, m.nbytes))(hmc.Memory.from_array(t)),
            "register": lambda t: comm.register(t).device,
            "isend": lambda t: comm.isend(t, 0, tag=len(name)).cancel(),
            "all_reduce": lambda t: comm.all_reduce(t, timeout=20),
            "mark": lambda t: type(hmc.StreamMark.of(t)),
            "dtype": lambda t: comm.all_reduce(t, dtype="float64", timeout=20),
        }.items():
            if name == "complex" and what != "from_array":
                continue
            fast, slow = (outcome(lambda: call(tensor)) for tensor in made)
            assert fast == slow, (name, what, fast, slow)
            if name in words and what == "from_array":
                assert words[name] in fast[1], fast
    assert outcome(lambda: hmc.Memory.from_array(made[0]).nbytes) == 64
"""
    body = body.replace("hmc.StreamMark", "hmc._core.StreamMark")
    run_script(source(vendor, body), hmc.testing.environment(vendor))


@pytest.mark.parametrize("way", ["Tensor", "ByProtocols"])
@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_the_current_stream_comes_first(run_script: Callable[..., str], vendor: str, way: str) -> None:
    body = (
        "from test_streams import CALLER\nexec(CALLER)\n"
        + f"kind = {way}\n"
        + """
memory, target = hmc.Memory(5000, vendor + ":0"), hmc.Memory(5000, vendor + ":0")
tensor = kind(memory, (5000,), claims=claims)
caller = Caller(vendor)
own = caller.stream
for value, stream in enumerate((own, None, own), 1):
    caller.stream, streams.handle = stream, stream or 0
    caller.gate.clear()
    caller.hold()
    caller.fill(tensor.address, value, 5000)
    copied = threading.Event()
    def copy():
        target.copy_from(tensor)
        copied.set()
    thread = threading.Thread(target=copy)
    thread.start()
    assert not copied.wait(0.05), "did not wait"
    caller.gate.set()
    thread.join(20)
    assert copied.is_set()
    got = np.zeros(5000, np.uint8)
    target.copy_to(got)
    assert (got == value).all()
"""
    )
    run_script(source(vendor, body), hmc.testing.environment(vendor))


def test_a_forked_child_gets_torchs_error(run_script: Callable[..., str]) -> None:
    body = """
tensor = Tensor(hmc.Memory(100, "cuda:0"), (100,))
assert hmc.Memory.from_array(tensor).nbytes == 100
streams.in_bad_fork = True
assert outcome(lambda: hmc.Memory.from_array(tensor)) == (RuntimeError, "Cannot re-initialize CUDA in forked subprocess")
streams.in_bad_fork = False
assert hmc.Memory.from_array(tensor).nbytes == 100
"""
    run_script(source("cuda", body), hmc.testing.environment("cuda"))


@pytest.mark.parametrize(
    "install",
    ["api=None", "raw_streams=False", "pretended.ExchangeApi(2, 0, tensor_of=pretended.tensor_of)", "pretended.ExchangeApi(1, 3)"],
    ids=["no interface", "no raw streams", "version 2", "no function"],
)
def test_another_torch_goes_by_the_protocols(run_script: Callable[..., str], install: str) -> None:
    body = """
memory = hmc.Memory(100, "cuda:1")
tensor = Tensor(memory, (100,))
for _ in range(2):
    pretended.asked.clear()
    assert hmc.Memory.from_array(tensor).device == "cuda:1"
    assert pretended.asked[-1] == "current_stream of cuda:1" and "__cuda_array_interface__" in pretended.asked, pretended.asked
"""
    run_script(source("cuda", body, install), hmc.testing.environment("cuda"))


def test_other_devices_have_streams_of_their_own(run_script: Callable[..., str]) -> None:
    body = """
memory = hmc.Memory(100, "mlu:1")
tensor = Tensor(memory, (100,), kind="mlu", claims=12)
pretended.asked.clear()
assert hmc.Memory.from_array(tensor).device == "mlu:1"
assert "current_stream of mlu:1" in pretended.asked and "__dlpack__" in pretended.asked, pretended.asked
"""
    run_script(source("mlu", body), hmc.testing.environment("mlu"))


def test_only_torchs_own_types_are_read_so(run_script: Callable[..., str]) -> None:
    """Subclasses may mean something else by an attribute. A module that is exchanged has types of its own."""
    body = """
memory = hmc.Memory(100, "cuda:0")
memory.copy_from(pattern(100, 3))
def reads(kind):
    pretended.asked.clear()
    taken = hmc.Memory.from_array(kind(memory, (100,)))
    got = np.zeros(100, np.uint8)
    taken.copy_to(got)
    assert np.array_equal(got, pattern(100, 3))
    return "tensor_of" in pretended.asked
class Sub(Tensor):
    pass
assert [reads(kind) for kind in (Sub, ByProtocols, Tensor, Sub)] == [False, False, True, False]
Again, _, _ = pretended.install()
assert [reads(kind) for kind in (Again, Tensor, Again)] == [True, False, True]
# HMC itself never imports torch, whatever an object says of itself.
del sys.modules["torch"], sys.modules["torch._C"]
class Tensor(bytearray):
    __module__ = "torch"
assert hmc.Memory.from_array(Tensor(b"abc")).nbytes == 3 and "torch" not in sys.modules
"""
    run_script(source("cuda", body), hmc.testing.environment("cuda"))


def test_a_tensor_is_kept_while_an_operation_uses_it(run_job: Callable[..., str]) -> None:
    body = """
size = 600_001
with hmc.init(timeout=40) as comm:
    other, device = 1 - comm.rank, f"cuda:{comm.rank}"
    for turn in range(3):
        memory = hmc.Memory(size, device)
        memory.copy_from(pattern(size, turn))
        tensor = Tensor(memory, (size,))
        seen = weakref.ref(tensor)
        if comm.rank == 0:
            work = comm.isend(tensor, other, tag=turn)
            del tensor, memory
            gc.collect()
            assert work.done or seen() is not None
            comm.barrier(timeout=20)
            work.wait(20)
        else:
            del tensor
            comm.barrier(timeout=20)
            target = Tensor(hmc.Memory(size, device), (size,))
            comm.recv(target, other, tag=turn, timeout=20)
            got = np.zeros(size, np.uint8)
            target.memory.copy_to(got)
            assert np.array_equal(got, pattern(size, turn))
        end = time.monotonic() + 20
        while seen() is not None:
            assert time.monotonic() < end, "the tensor is kept after the operation"
            time.sleep(0.001)
    # Collectives of device tensors with an element type of torch's.
    values = np.arange(1000, dtype=np.float32) * (comm.rank + 1)
    tensors = [Tensor(hmc.Memory(4000, device), (10, 100), "float32") for _ in range(2)]
    tensors[0].memory.copy_from(values)
    comm.all_reduce(tensors[1], tensors[0], timeout=20)
    got = np.zeros(1000, np.float32)
    tensors[1].memory.copy_to(got)
    assert np.array_equal(got, np.arange(1000, dtype=np.float32) * 3)
    comm.barrier(timeout=20)
"""
    run_job(source("cuda", body), environment=hmc.testing.environment("cuda"))
