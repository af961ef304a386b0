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
# By vLLM's name of the cache's type, where its tensors are bytes.
_EIGHT_BITS = {"fp8": "f8_e4m3fn", "fp8_e4m3": "f8_e4m3fn", "fp8_e5m2": "f8_e5m2"}
_DIGIT = {2: 64, 4: 64, 1: 8}  # by bytes of an element: whole numbers up to it are exact


@dataclass(frozen=True)
class Shape:
    """The part of the model's cache that a worker has."""

    first_layer: int
    first_head: int
    heads: int
    dims: int
    block: int
    scales: tuple[float, ...] = ()  # of K and V of each layer; 8-bit types only


@dataclass(frozen=True)
class Cache:
    """One pool: the layout, and its arrays, one for each layer. K and V of one engine can be two of them."""

    name: str
    layout: Layout
    arrays: list[Any]


def element_type(tensor: torch.Tensor, cache_dtype: str) -> str:
    """HMC's name of a cache's element type. ``cache_dtype``: vLLM's name. Raises UnsupportedError."""
    found = _EIGHT_BITS.get(cache_dtype) if tensor.dtype == torch.uint8 else _DTYPES.get(tensor.dtype)
    if found is None:
        known = ", ".join((*_DTYPES.values(), *_EIGHT_BITS))
        raise UnsupportedError(f"the KV cache has elements of {tensor.dtype} ({cache_dtype}); supported are {known}")
    return found


def describe(backend: str, tensors: list[torch.Tensor], shape: Shape, dtype: str) -> list[Cache]:
    """The caches of a backend, from its layers' tensors in order, with elements of HMC's ``dtype``.

    Raises UnsupportedError for a backend, or a form of its tensors, that is not described.
    """
    first = tensors[0]
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise UnsupportedError(
                f"the KV cache is on {tensor.device}; this connector describes caches of vLLM's CPU backend only"
            )
        if (tensor.shape, tensor.stride(), tensor.dtype) != (first.shape, first.stride(), first.dtype):
            raise UnsupportedError(
                f"layers have caches of shapes {list(first.shape)} and {list(tensor.shape)}: one shape for all is supported"
            )
    if backend != "CPU_ATTN":
        raise UnsupportedError(f"the layout of attention backend {backend} is not described; described is CPU_ATTN")
    return _cpu_attn(tensors, shape, dtype)


def _cpu_attn(tensors: list[torch.Tensor], shape: Shape, dtype: str) -> list[Cache]:
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
    for kv, (name, axes, begin) in enumerate((("K", f"D={dims} N={block}", 0), ("V", f"N={block} D={dims}", block * dims))):
        scales = shape.scales[kv::2]
        layout = Layout(
            f"L={len(tensors)}@{shape.first_layer} | B={first.shape[0]}:{by_block} H={heads}@{shape.first_head}:{by_head} {axes}",
            dtype=dtype,
            scales=[scale for scale in scales for _ in range(2)],
        )
        caches.append(Cache(name, layout, [_memory(tensor, begin, layout.buffer_bytes) for tensor in tensors]))
    return caches


def _memory(tensor: torch.Tensor, begin: int, nbytes: int) -> Any:
    """The bytes of a tensor's storage from its element ``begin`` on."""
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    at = (tensor.storage_offset() + begin) * tensor.element_size()
    return flat.numpy()[at : at + nbytes]


def probe(
    describe_one: Callable[[torch.Tensor], list[Cache]], cache: torch.Tensor, write: Write, shape: Shape, dtype: torch.dtype
) -> None:
    """Checks a description: writes numbered K and V through the engine's own operation, and compares all bytes with HMC's.

    ``cache``: a cache of the engine's shape and strides, with a few blocks, that the engine does not use. ``dtype``: of the K and V
    that the engine writes. Raises UnsupportedError where the engine's operation puts an element elsewhere than described.
    """
    blocks = cache.shape[0]
    tokens = blocks * shape.block
    count = 2 * tokens * shape.heads * shape.dims
    slots = torch.arange(tokens, dtype=torch.int64)
    numbers = np.arange(count).reshape(2, tokens, shape.heads, shape.dims)
    caches = describe_one(cache)
    plain = Layout(
        f"L=1@{shape.first_layer} B={blocks} N={shape.block} H={shape.heads}@{shape.first_head} D={shape.dims}",
        dtype=_DTYPES[dtype],
    )
    order = list(range(blocks))
    base = _DIGIT[cache.element_size()]
    digit = 1
    while digit < count:
        digits = torch.from_numpy((numbers // digit % base + 1).astype(np.float32))
        # A little more than a whole number of scales: it is that number whether the engine rounds to nearest or towards 0.
        values = [
            (one * scale * 1.01 if shape.scales else one).to(dtype)
            for one, scale in zip(digits, shape.scales or (1, 1), strict=False)
        ]
        cache.zero_()
        write(values[0], values[1], cache, slots)
        written = _memory(cache, 0, cache.numel() * cache.element_size()).copy()
        cache.zero_()
        for one, value in zip(caches, values, strict=True):
            convert(plain, _memory(value, 0, plain.buffer_bytes), order, one.layout, one.arrays, order, tokens)
        wrong = int(np.count_nonzero(written != _memory(cache, 0, len(written))))
        if wrong:
            layouts = ", ".join(str(one.layout) for one in caches)
            raise UnsupportedError(
                f"the layout {layouts} is described, and {wrong} of {len(written)} bytes that the engine wrote lie elsewhere: "
                "this release of vLLM, or its kernel for this CPU, has another layout"
            )
        digit *= base
