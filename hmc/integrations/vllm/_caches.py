"""vLLM's KV caches as pools: which layout a backend uses, described and then checked against its own cache-write operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hmc.errors import UnsupportedError
from hmc.layout import Layout, convert

__all__ = ["Cache", "Shape", "describe", "probe"]

# Writes keys and values of shape (tokens, heads, dimensions) into a cache of the backend's shape, at slots (block * N + token).
Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_DIGIT = 64  # numbers below it are exact in every element type


@dataclass(frozen=True)
class Shape:
    """The part of the model's cache that a worker has."""

    first_layer: int
    first_head: int
    heads: int
    dims: int
    block: int


@dataclass(frozen=True)
class Cache:
    """One pool: the layout, and its arrays, one for each layer. K and V of one engine can be two of them."""

    name: str
    layout: Layout
    arrays: list[Any]


def describe(backend: str, tensors: list[torch.Tensor], shape: Shape) -> list[Cache]:
    """The caches of a backend, from its layers' tensors in order. Raises UnsupportedError for a backend that is not described."""
    first = tensors[0]
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise UnsupportedError(
                f"the KV cache is on {tensor.device}; hmc.kv moves CPU memory only: use vLLM's CPU backend, or another connector"
            )
        if (tensor.shape, tensor.stride(), tensor.dtype) != (first.shape, first.stride(), first.dtype):
            raise UnsupportedError(
                f"layers have caches of shapes {list(first.shape)} and {list(tensor.shape)}: one shape for all is supported"
            )
    if backend != "CPU_ATTN":
        raise UnsupportedError(f"the layout of attention backend {backend} is not described; described is CPU_ATTN")
    if first.dtype not in _DTYPES:
        raise UnsupportedError(f"the KV cache has element type {first.dtype}; supported are {', '.join(_DTYPES.values())}")
    return _cpu_attn(tensors, shape)


def _cpu_attn(tensors: list[torch.Tensor], shape: Shape) -> list[Cache]:
    """Blocks of heads; a head's K by dimensions, behind it its V by tokens."""
    first = tensors[0]
    heads, block, dims = shape.heads, shape.block, shape.dims
    if tuple(first.shape[1:]) != (heads, block, 2 * dims):
        raise UnsupportedError(
            f"CPU_ATTN has a cache of shape {list(first.shape)}; described is (blocks, {heads} heads, {block} tokens, {2 * dims})"
        )
    by_block, by_head, *inner = first.stride()
    if inner != [2 * dims, 1]:
        raise UnsupportedError(f"CPU_ATTN has a cache of strides {first.stride()}; described are compact heads")
    caches = []
    for name, axes, begin in (("K", f"D={dims} N={block}", 0), ("V", f"N={block} D={dims}", block * dims)):
        layout = Layout(
            f"L={len(tensors)}@{shape.first_layer} | B={first.shape[0]}:{by_block} H={heads}@{shape.first_head}:{by_head} {axes}",
            dtype=_DTYPES[first.dtype],
        )
        caches.append(Cache(name, layout, [_memory(tensor, begin, layout.buffer_bytes) for tensor in tensors]))
    return caches


def _memory(tensor: torch.Tensor, begin: int, nbytes: int) -> Any:
    """The bytes of a tensor's storage from its element ``begin`` on."""
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    at = (tensor.storage_offset() + begin) * tensor.element_size()
    return flat.numpy()[at : at + nbytes]


def probe(describe_one: Callable[[torch.Tensor], list[Cache]], cache: torch.Tensor, write: Write, shape: Shape) -> None:
    """Checks a description: writes numbered K and V through the engine's own operation, and compares all bytes with HMC's.

    ``cache``: an empty cache of the engine's shape and strides, with a few blocks, that the engine does not use. Raises
    UnsupportedError where the engine's operation puts an element elsewhere than described.
    """
    blocks = cache.shape[0]
    tokens = blocks * shape.block
    count = 2 * tokens * shape.heads * shape.dims
    slots = torch.arange(tokens, dtype=torch.int64)
    numbers = np.arange(count).reshape(2, tokens, shape.heads, shape.dims)
    dtype = _DTYPES[cache.dtype]
    caches = describe_one(cache)
    plain = Layout(
        f"L=1@{shape.first_layer} B={blocks} N={shape.block} H={shape.heads}@{shape.first_head} D={shape.dims}", dtype=dtype
    )
    digit = 1
    while digit < count:
        values = torch.from_numpy((numbers // digit % _DIGIT + 1).astype(np.float32)).to(cache.dtype)
        cache.zero_()
        write(values[0], values[1], cache, slots)
        written = _memory(cache, 0, cache.numel() * cache.element_size()).copy()
        cache.zero_()
        order = list(range(blocks))
        for kv, one in enumerate(caches):
            convert(plain, _memory(values[kv].contiguous(), 0, plain.buffer_bytes), order, one.layout, one.arrays, order, tokens)
        described = _memory(cache, 0, len(written))
        if not np.array_equal(written, described):
            wrong = int(np.count_nonzero(written != described))
            layouts = ", ".join(str(one.layout) for one in caches)
            raise UnsupportedError(
                f"the layout {layouts} is described, and {wrong} of {len(written)} bytes that the engine wrote lie elsewhere: "
                "this release of vLLM, or its kernel for this CPU, has another layout"
            )
        digit *= _DIGIT
