"""A module `torch` whose tensors lie in memory of simulated devices, with the parts of torch that HMC asks. Each look is noted."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any

import hmc

#: What was asked of the tensors and of torch since the last clear().
asked: list[str] = []


class DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


TENSOR_OF = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))


class ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous_version", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_tensor_of", ctypes.c_void_p),
        ("object_of", ctypes.c_void_p),
        ("tensor_of", TENSOR_OF),
        ("current_stream", ctypes.c_void_p),
    )


class Type:
    """As torch.dtype: its text is its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return "torch." + self.name


TYPES = {"uint8": (1, 8, "|u1"), "float32": (2, 32, "<f4"), "complex64": (5, 64, "<c8")}


class Where:
    """As torch.device."""

    def __init__(self, kind: str, index: int) -> None:
        self.type, self.index = kind, index


class Storage:
    """As torch.UntypedStorage."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def nbytes(self) -> int:
        return self._nbytes


class Base:
    """What torch.Tensor has. `claims`: the DLPack type of the device; `address`: where the elements lie, instead of in `memory`."""

    def __init__(
        self,
        memory: hmc.Memory,
        shape: tuple[int, ...],
        dtype: str = "uint8",
        *,
        kind: str = "cuda",
        claims: int = 2,
        strides: tuple[int, ...] | None = None,
        flags: tuple[str, ...] = (),
        address: int | None = None,
    ) -> None:
        self.memory, self.shape, self.dtype, self.strides, self.flags = memory, shape, Type(dtype), strides, flags
        self.claims = claims
        self.device = Where(kind, int(memory.device.partition(":")[2] or 0))
        self.address = address_of(memory) if address is None else address
        rank = len(shape)
        self.lengths = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*(strides or ()))

    @property
    def requires_grad(self) -> bool:
        asked.append("requires_grad")
        return "requires_grad" in self.flags

    def is_neg(self) -> bool:
        asked.append("is_neg")
        return "is_neg" in self.flags

    def is_conj(self) -> bool:
        asked.append("is_conj")
        return "is_conj" in self.flags

    def storage_offset(self) -> int:
        asked.append("storage_offset")
        return (self.address - self._storage[0]) * 8 // TYPES[self.dtype.name][1]

    def untyped_storage(self) -> Storage:
        asked.append("untyped_storage")
        return Storage(self._storage[1])

    @property
    def _storage(self) -> tuple[int, int]:
        """Address and bytes: of the memory, or of what else the tensor lies in."""
        start = address_of(self.memory)
        inside = start <= self.address < start + self.memory.nbytes
        return (start, self.memory.nbytes) if inside else (self.address, 1 << 30)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        asked.append("__cuda_array_interface__")
        if self.device.type != "cuda":
            raise AttributeError("no device of CUDA's")
        if "requires_grad" in self.flags:
            raise RuntimeError("requires grad")
        _, bits, typestr = TYPES[self.dtype.name]
        strides = None if self.strides is None else tuple(stride * bits // 8 for stride in self.strides)
        data = (0 if 0 in self.shape else self.address, False)
        return {"typestr": typestr, "shape": self.shape, "strides": strides, "data": data, "version": 2}

    def __dlpack_device__(self) -> tuple[int, int]:
        asked.append("__dlpack_device__")
        return self.claims, self.device.index

    def __dlpack__(self, **settings: Any) -> Any:
        asked.append("__dlpack__")
        if "requires_grad" in self.flags:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.memory.__dlpack__(**settings)


def address_of(memory: hmc.Memory) -> int:
    """Of memory on any device, by its DLPack export."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = memory.__dlpack__()  # owns the structure
    return ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(ctypes.c_void_p))[0] or 0


@TENSOR_OF
def tensor_of(tensor: Any, out: Any) -> int:
    asked.append("tensor_of")
    code, bits, _ = TYPES[tensor.dtype.name]
    lengths, strides = tensor.lengths
    to = out.contents
    to.data, to.device_type, to.device_id = tensor.address, tensor.claims, tensor.device.index
    to.ndim, to.code, to.bits, to.lanes, to.byte_offset = len(tensor.shape), code, bits, 1, 0
    to.shape = ctypes.cast(lengths, ctypes.POINTER(ctypes.c_int64))
    to.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)) if tensor.strides else None
    return 0


API = ExchangeApi(1, 3, tensor_of=tensor_of)


kept: list[ExchangeApi] = []


def capsule_of(api: ExchangeApi) -> Any:
    """Such an interface lives as long as the process."""
    kept.append(api)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.addressof(api), b"dlpack_exchange_api", None)


class Stream:
    """As torch.cuda.Stream: HMC takes its handle."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


class Streams:
    """Those of a backend such as torch.cuda: `handle` is the current one's, "bad fork" what a child of fork() sees."""

    def __init__(self) -> None:
        self.handle, self.in_bad_fork = 0, False

    def current_stream(self, device: Where) -> Stream:
        asked.append(f"current_stream of {device.type}:{device.index}")
        if self.in_bad_fork:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return Stream(self.handle)

    def raw(self, index: int) -> int:
        asked.append(f"raw stream of {index}")
        return self.handle


def install(api: ExchangeApi | None = API, raw_streams: bool = True) -> tuple[type, type, Streams]:
    """Makes `import torch` this module. Returns torch.Tensor, a namesake that only the protocols serve, and the streams."""
    torch, extension, streams = types.ModuleType("torch"), types.ModuleType("torch._C"), Streams()
    body: dict[str, Any] = {"__module__": "torch"}
    if api is not None:
        body["__dlpack_c_exchange_api__"] = capsule_of(api)
    tensor, by_protocols = (type("Tensor", (Base,), dict(body)) for _ in range(2))
    methods: dict[str, Callable[..., Any]] = {"_cuda_isInBadFork": lambda: streams.in_bad_fork}
    if raw_streams:
        methods["_cuda_getCurrentRawStream"] = streams.raw
    extension.__dict__.update(methods)
    torch.__dict__.update(Tensor=tensor, _C=extension, cuda=streams, mlu=streams)
    sys.modules["torch"], sys.modules["torch._C"] = torch, extension
    return tensor, by_protocols, streams
