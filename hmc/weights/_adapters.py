"""What publish() and plan() take, made from torch modules and states, and from safetensors files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmc.errors import InvalidArgumentError, UnsupportedError
from hmc.tensors import _dtypes
from hmc.weights._parts import WORDS, Part, part

__all__ = ["from_module", "from_safetensors", "from_state"]

_SAFETENSORS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
_MAX_HEADER = 256 << 20
_MAX_AXES = 64  # NumPy's


def from_module(module: Any) -> dict[str, Part]:
    """The parameters and persistent buffers of a torch module, in place, by the names of its ``state_dict()``.

    Of sharded parameters (DTensor: FSDP2, tensor parallel) it is this rank's shard. As a target, commit() writes into the module.
    """
    if not callable(getattr(module, "state_dict", None)):
        raise TypeError(f"module must have a state_dict(), and a {type(module).__name__} has none")
    return from_state(module.state_dict())


def from_state(state: Mapping[str, Any]) -> dict[str, Part]:
    """The tensors of a flat state, such as ``model.state_dict()``, in place; of a DTensor, this rank's shard.

    A DTensor whose mesh this rank is not part of is left out: the rank holds nothing of it.
    UnsupportedError for a DTensor with partial sums, or whose shard is not one box of the tensor (strided shards).
    """
    if not callable(getattr(state, "items", None)):
        raise TypeError(f"state must be a mapping of names to tensors, not a {type(state).__name__}")
    found = {}
    for name, tensor in state.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"the name {name!r} of the state: a tensor's name is a text")
        if callable(getattr(tensor, "to_local", None)) and hasattr(tensor, "placements"):
            if tensor.device_mesh.get_coordinate() is not None:
                found[name] = _shard_of(name, tensor)
        elif hasattr(tensor, "dtype") and hasattr(tensor, "shape"):
            found[name] = part(tensor)
        elif not name.endswith("_extra_state"):
            raise InvalidArgumentError(f"{name} of the state is a {type(tensor).__name__}: pass a flat state of tensors")
    return found


def _shard_of(name: str, tensor: Any) -> Part:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    wrong = [place for place in tensor.placements if type(place).__name__ not in ("Shard", "Replicate")]
    if wrong:
        raise UnsupportedError(f"tensor {name} has the placement {wrong[0]}: use Shard and Replicate")
    local = tensor.to_local()
    shape, at = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) != tuple(local.shape):
        raise UnsupportedError(f"tensor {name}: the shard has shape {tuple(local.shape)}, and {tuple(shape)} by its placements")
    inside = [min(a, s - e) for a, s, e in zip(at, tensor.shape, shape, strict=True)]  # an empty shard may lie behind the end
    return part(local, tensor.shape, inside)


def from_safetensors(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> dict[str, Part]:
    """The tensors of one or more safetensors files, mapped read-only; publish() sends them from the page cache.

    InvalidArgumentError for a file that is damaged, and for a name in two files; UnsupportedError for an element type that HMC
    does not have. The files must not change while they are published.
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: dict[str, Part] = {}
    for file in files:
        for name, one in _file(Path(file)).items():
            if name in found:
                raise InvalidArgumentError(f"tensor {name} is in two files, the second is {file}")
            found[name] = one
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _entry(name: str, one: Any) -> tuple[str, str, list[int], int, int]:
    """Name, type, shape, and the first and last byte. ValueError, TypeError or KeyError where the header is damaged."""
    kind, shape, (begin, end) = one["dtype"], one["shape"], one["data_offsets"]
    if not isinstance(kind, str) or not isinstance(shape, list) or len(shape) > _MAX_AXES:
        raise ValueError(f"tensor {name} has no type, or not a shape of at most {_MAX_AXES} axes")
    if any(type(number) is not int for number in (*shape, begin, end)):
        raise ValueError(f"tensor {name}: its shape and data_offsets are not ints")
    return name, kind, shape, begin, end


def _file(path: Path) -> dict[str, Part]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise InvalidArgumentError(f"{path} is no safetensors file: its header would have {length} bytes")
        header = file.read(length)
    try:
        described = json.loads(header, object_pairs_hook=_unique)
        entries = [_entry(name, one) for name, one in described.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is no safetensors file: {error}") from None
    data = np.memmap(path, np.uint8, "r", offset=8 + length) if size > 8 + length else np.zeros(0, np.uint8)
    found = {}
    for name, kind, shape, begin, end in entries:
        if kind not in _SAFETENSORS:
            raise UnsupportedError(f"tensor {name} of {path} has the type {kind}: supported are {', '.join(_SAFETENSORS)}")
        dtype = _SAFETENSORS[kind]
        itemsize = _dtypes.size_of(dtype)
        if min([*shape, begin]) < 0 or end > len(data) or end - begin != math.prod(shape) * itemsize:
            raise InvalidArgumentError(
                f"{path} is damaged: tensor {name} of {dtype}{shape} at bytes {begin} to {end} of {len(data)}"
            )
        word = np.dtype(WORDS[itemsize])
        try:
            words: Any = np.ndarray(shape, word, data, begin) if end > begin else np.zeros(shape, word)
        except ValueError as error:
            raise InvalidArgumentError(f"{path}: tensor {name} of shape {shape} is no NumPy array: {error}") from None
        found[name] = part(words, dtype=dtype)
    return found
