"""Tensors of torch: those of plain bytes by DLPack's C interface, all others by the protocols, alike in bytes, errors and words."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Pair
from patterns import pattern

import hmc
import hmc.testing

torch = pytest.importorskip("torch", reason="torch is not installed")

by_c_interface = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no C interface for DLPack"
)


def by_protocols(tensor: Any) -> Any:
    """The same tensor as a subclass of the same name, which HMC does not read by torch's C interface."""
    kind = type(tensor)
    body = {"__module__": kind.__module__, "__torch_function__": torch._C._disabled_torch_function_impl}
    same = tensor.as_subclass(type(kind)(kind.__name__, (kind,), body))
    assert type(same) is not kind
    return same


def resized(nbytes: int, part: slice | None = None, elements: int = 5000) -> Any:
    """A part of a tensor whose storage was resized, as FSDP does to free parameters."""
    tensor = torch.ones(elements)
    found = tensor if part is None else tensor[part]
    tensor.untyped_storage().resize_(nbytes)
    return found


def quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)


REFUSED: dict[str, tuple[Callable[[], Any], type[BaseException], str]] = {
    "strided": (lambda: torch.ones(4, 4)[:, ::2], hmc.InvalidArgumentError, "not C-contiguous"),
    "transposed": (lambda: torch.ones(2, 3).t(), hmc.InvalidArgumentError, "not C-contiguous"),
    "expanded": (lambda: torch.ones(1).expand(5), hmc.InvalidArgumentError, "not C-contiguous"),
    "channels last": (
        lambda: torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        hmc.InvalidArgumentError,
        "not C-contiguous",
    ),
    "negative": (lambda: torch._neg_view(torch.ones(3)), hmc.InvalidArgumentError, "resolve_neg"),
    "conjugate": (lambda: torch.ones(3, dtype=torch.complex64).conj(), hmc.InvalidArgumentError, "resolve_conj"),
    "imaginary part": (lambda: torch.ones(3, dtype=torch.complex64).conj().imag, hmc.InvalidArgumentError, "resolve_neg"),
    "requires grad": (lambda: torch.ones(3, requires_grad=True), BufferError, "require gradient"),
    "of a graph": (lambda: torch.ones(3, requires_grad=True) * 2, BufferError, "require gradient"),
    "parameter": (lambda: torch.nn.Parameter(torch.ones(3)), BufferError, "require gradient"),
    "empty that requires grad": (lambda: torch.ones(0, requires_grad=True), BufferError, "require gradient"),
    "negative that requires grad": (
        lambda: torch._neg_view(torch.ones(3, requires_grad=True)),
        hmc.InvalidArgumentError,
        "resolve_neg",
    ),
    "sparse": (lambda: torch.eye(3).to_sparse(), BufferError, "layout"),
    "compressed rows": (lambda: torch.eye(3).to_sparse_csr(), BufferError, "layout"),
    "quantized": (quantized, BufferError, "QInt"),
    "bits": (lambda: torch.ones(4, dtype=torch.uint8).view(torch.bits8), BufferError, "Bit types"),
    "meta": (lambda: torch.empty(5, device="meta"), BufferError, "meta"),
    "without storage": (lambda: resized(0), hmc.InvalidArgumentError, "byte 20000 of its storage of 0 bytes"),
    "part without storage": (lambda: resized(0, slice(7, 11)), hmc.InvalidArgumentError, "byte 44 of its storage of 0 bytes"),
    "short storage": (lambda: resized(19999), hmc.InvalidArgumentError, "byte 20000 of its storage of 19999 bytes"),
    "part of a short storage": (
        lambda: resized(19000, slice(500, 5000)),
        hmc.InvalidArgumentError,
        "byte 20000 of its storage of 19000 bytes",
    ),
    "zeros that take no memory": (lambda: torch._efficientzerotensor(5), hmc.InvalidArgumentError, "null"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(3)), hmc.InvalidArgumentError, "null"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), RuntimeError, "Nested"),
}
# Of these torch makes no subclass.
NO_SUBCLASS = {"sparse", "compressed rows", "functional", "nested"}

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "from_array": lambda comm, tensor: hmc.Memory.from_array(tensor),
    "register": lambda comm, tensor: comm.register(tensor),
    "isend": lambda comm, tensor: comm.isend(tensor, 0),
    "irecv": lambda comm, tensor: comm.irecv(tensor, 0),
    "recv": lambda comm, tensor: comm.recv(tensor, 0, timeout=5),
    "all_to_all": lambda comm, tensor: comm.all_to_all(tensor, tensor, timeout=5),
    "broadcast": lambda comm, tensor: comm.broadcast(tensor, timeout=5),
    "all_reduce": lambda comm, tensor: comm.all_reduce(tensor, timeout=5),
}


@pytest.fixture(scope="module")
def comm() -> Any:
    with hmc.init(0, 1) as only:
        yield only


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_those_of_the_protocols(comm: Any, name: str) -> None:
    make, error, words = REFUSED[name]
    tensor = make()
    assert type(tensor) in (torch.Tensor, torch.nn.Parameter)
    with pytest.raises(error, match=words):
        hmc.Memory.from_array(tensor)
    ways = [tensor] if name in NO_SUBCLASS else [tensor, by_protocols(tensor)]
    for what, call in CALLS.items():
        raised = []
        for way in ways:
            with pytest.raises(Exception) as caught:
                call(comm, way)
            raised.append((caught.type, str(caught.value)))
        assert raised[0] == raised[-1], what


def test_short_tensors_beyond_their_storage_are_not_registered(comm: Any) -> None:
    from hmc import tensors

    for tensor in (resized(15, elements=4), resized(0, slice(1, 3), 4), resized(12, slice(2, 4), 4)):
        for call in (hmc.Memory.from_array, comm.register, lambda one: tensors.register(comm, one)):
            with pytest.raises(hmc.InvalidArgumentError, match=r"of its storage of \d+ bytes, which was resized"):
                call(tensor)
    for tensor in (resized(16, elements=4), resized(12, slice(1, 3), 4), resized(0, slice(2, 2), 4)):
        comm.register(tensor).close()


@by_c_interface
def test_plain_tensors_are_read_without_the_protocols(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import torch, hmc
def refuse(*_, **__):
    raise AssertionError("a protocol was asked")
torch.Tensor.__dlpack__ = torch.Tensor.__cuda_array_interface__ = refuse
torch.Tensor.__cuda_array_interface__ = property(refuse)
class Sub(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl
with hmc.init(0, 1) as comm:
    for tensor in (torch.ones(5), torch.nn.Parameter(torch.ones(5), requires_grad=False), torch.ones(0), torch.ones(4, 4)[1:3],
                   torch.ones(()), torch.ones(3, dtype=torch.complex64), torch.ones(5, requires_grad=True).detach()):
        assert hmc.Memory.from_array(tensor).nbytes == tensor.nbytes
        comm.all_to_all(torch.empty_like(tensor), tensor, timeout=20)
        if not tensor.is_complex():
            comm.all_reduce(tensor, timeout=20)
    for refused in (torch.ones(5).as_subclass(Sub), torch.ones(5, requires_grad=True), torch.ones(4, 4).t()):
        try:
            hmc.Memory.from_array(refused)
        except AssertionError:
            continue
        raise AssertionError("read by the C interface")
"""
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("way", [lambda tensor: tensor, by_protocols], ids=["itself", "subclass"])
def test_every_type_and_shape_goes_through(pair: Pair, way: Callable[[Any], Any]) -> None:
    raw = torch.from_numpy(pattern(4800, 7))
    tensors = [raw.view(dtype) for dtype in (torch.float64, torch.float16, torch.int8, torch.int64, torch.complex64, torch.bool)]
    tensors += [raw.view(torch.bfloat16).view(20, 4, 30), raw.view(torch.float8_e4m3fn)[11:], raw[4799], raw[5:5]]
    tensors += [raw.view(2, 2400)[1], raw.view(60, 80)[:, :1][3], raw.view(60, 1, 80)[7:30], raw.view(torch.float32).conj()]
    tensors += [torch.nn.Parameter(raw.view(torch.float32), requires_grad=False)]
    tensors += [torch.ones(3, 0, 2).transpose(0, 2), torch._lazy_clone(raw.clone())]
    for tag, tensor in enumerate(tensors):
        expected = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        got = way(torch.full((len(expected) + 3,), 9, dtype=torch.uint8)[3:])
        receiving = pair.ba.irecv(got, tag=tag)
        pair.ab.send(way(tensor), tag=tag, timeout=20)
        receiving.wait(20)
        assert receiving.info.bytes == len(expected)
        assert got.numpy().tobytes() == expected, tensor


@pytest.mark.parametrize("mode", ["device", "no_grad", "inference"])
def test_modes_of_torch_change_nothing(pair: Pair, mode: str) -> None:
    source, target = torch.from_numpy(pattern(999, 3)), torch.zeros(999, dtype=torch.uint8)
    modes = {"device": lambda: torch.device("meta"), "no_grad": torch.no_grad, "inference": torch.inference_mode}
    with modes[mode]():
        receiving = pair.ba.irecv(target, tag=1)
        pair.ab.send(source, tag=1, timeout=20)
        receiving.wait(20)
    assert torch.equal(source, target)


def test_transforms_have_no_memory_to_show(comm: Any) -> None:
    def look(tensor: Any) -> Any:
        with pytest.raises((RuntimeError, hmc.InvalidArgumentError, BufferError)):
            hmc.Memory.from_array(tensor)
        return tensor.sum()

    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    torch.func.functionalize(look)(torch.ones(3))


@pytest.mark.parametrize("op", ["sum", "max"])
def test_reductions_take_the_types_of_the_tensors(comm: Any, op: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int16, torch.uint8, torch.float8_e5m2):
        values = torch.arange(1, 8).to(dtype)
        out = torch.zeros(7, dtype=dtype)
        comm.all_reduce(out, values, op=op, timeout=20)
        assert out.view(torch.uint8).tolist() == values.view(torch.uint8).tolist()
        with pytest.raises(TypeError, match="different types"):
            comm.all_reduce(out, torch.zeros(7, dtype=torch.int32), timeout=20)
    mixed = torch.arange(7.0)
    comm.all_reduce(mixed, np.arange(7, dtype=np.float32) + 1, timeout=20)
    assert mixed.tolist() == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(TypeError, match=r"torch\.complex64"):
        comm.all_reduce(torch.ones(3, dtype=torch.complex64), timeout=20)


def test_a_tensor_is_kept_while_an_operation_uses_it(pair: Pair) -> None:
    for turn in range(10):
        tensor = torch.from_numpy(pattern(300_000, turn)).clone()
        seen = weakref.ref(tensor)
        sending = pair.ab.isend(tensor, tag=turn)
        del tensor
        gc.collect()
        filler = [torch.zeros(300_000, dtype=torch.uint8) for _ in range(4)]
        assert sending.done or seen() is not None
        got = torch.zeros(300_000, dtype=torch.uint8)
        pair.ba.recv(got, tag=turn, timeout=20)
        sending.wait(20)
        assert np.array_equal(got.numpy(), pattern(300_000, turn))
        del filler, sending
    registered = pair.b.register(torch.from_numpy(pattern(20_000, 5)).clone())
    gc.collect()
    remote = pair.ab.import_buffer(registered.descriptor(), timeout=20)
    pair.ab.get(pair.local, remote).wait(20)
    assert np.array_equal(pair.local.numpy(), pattern(20_000, 5))


@by_c_interface
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_cuda_tensors_over_simulated_memory(run_script: Callable[..., str]) -> None:
    """A real torch, whose tensors lie on a simulated device; it is told which stream is current, having no driver to ask."""
    run_script(
        """
import torch
from hmc import tensors
torch.cuda._lazy_init = lambda: None
torch.cuda.current_stream = lambda device: 1
streams = []
def raw(index):
    streams.append(index)
    return 0
torch._C._cuda_isInBadFork, torch._C._cuda_getCurrentRawStream = (lambda: False), raw
memory = hmc.Memory(4096, "cuda:0")
memory.copy_from(pattern(4096, 1))
def tensor_of(dtype, shape, strides=None, offset=0):
    tensor = torch._C._from_dlpack(tensors.view(memory, dtype, shape, strides, offset=offset).__dlpack__())
    assert type(tensor) is torch.Tensor and tensor.is_cuda
    return tensor
for dtype, shape, offset in (("uint8", (4096,), 0), ("bfloat16", (2, 1000), 6), ("float8_e4m3fn", (7, 3), 5), ("complex64", (), 8)):
    part = tensor_of(dtype, shape, offset=offset)
    del streams[:]
    taken = hmc.Memory.from_array(part)
    got = np.zeros(part.nbytes, np.uint8)
    taken.copy_to(got)
    assert (taken.device, streams) == ("cuda:0", [0]), streams
    assert np.array_equal(got, pattern(4096, 1)[offset:offset + part.nbytes])
negative, conjugate = tensor_of("float32", (9,)), tensor_of("complex64", (9,))
torch._C._set_neg(negative, True)
torch._C._set_conj(conjugate, True)
refused = {
    "strided device": tensor_of("float32", (8, 8), (64, 4)),
    "resolve_neg": negative,
    "resolve_conj": conjugate,
    "require gradient": tensor_of("float32", (9,)).requires_grad_(),
}
for words, part in refused.items():
    try:
        hmc.Memory.from_array(part)
    except (hmc.InvalidArgumentError, BufferError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
    assert streams == [0]
empty = hmc.Memory.from_array(tensor_of("float32", (0, 7)))
assert (empty.nbytes, empty.device) == (0, "cuda:0")
with hmc.init(0, 1) as comm:
    out, given = hmc.Memory(4096, "cuda:0"), tensor_of("uint8", (4096,))
    comm.all_reduce(torch._C._from_dlpack(out.__dlpack__()), given, timeout=20)
    got = np.zeros(4096, np.uint8)
    out.copy_to(got)
    assert np.array_equal(got, pattern(4096, 1))
""",
        hmc.testing.environment("cuda"),
    )
