"""The layouts of vLLM's CPU attention as described, against its own cache-write operation; and descriptions that are wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from vllm import _custom_ops as ops  # loads the kernels for this processor

from hmc.errors import UnsupportedError
from hmc.integrations.vllm._caches import Shape, describe, element_type, probe


def has_fp8() -> bool:
    return bool(torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported())


def write(kind: str, scales: tuple[float, ...], key: Any, value: Any, cache: Any, slots: Any) -> None:
    """As vLLM's CPUAttentionBackendImpl.do_kv_cache_update, with its kernel for any CPU."""
    blocks, heads, block, _ = cache.shape
    keys, values = cache.view(blocks, heads, 2 * block, -1).chunk(2, dim=2)
    k_scale, v_scale = scales or (1.0, 1.0)
    ops.cpu_attn_reshape_and_cache(key, value, keys, values, slots, "vec", k_scale=k_scale, v_scale=v_scale, kv_cache_dtype=kind)


def check(shape: Shape, kind: str, dtype: torch.dtype, described: Shape | None = None) -> None:
    cache = torch.empty((3, shape.heads, shape.block, 2 * shape.dims), dtype=torch.uint8 if kind != "auto" else dtype)
    name = element_type(cache, kind)
    told = described or shape
    probe(lambda one: describe("CPU_ATTN", [one], told, name), cache, lambda *given: write(kind, shape.scales, *given), told, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "dims", "block"), [(1, 32, 32), (4, 64, 64), (3, 128, 96)])
def test_the_layout_is_as_described(dtype: torch.dtype, heads: int, dims: int, block: int) -> None:
    check(Shape(0, 0, heads, dims, block), "auto", dtype)
    check(Shape(5, 8, heads, dims, block), "auto", dtype)


@pytest.mark.skipif(not has_fp8(), reason="vLLM's fp8 caches on the CPU require AVX-512 or AMX")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["fp8", "fp8_e5m2"])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.3, 0.07)])
def test_the_layout_of_fp8_is_as_described(dtype: torch.dtype, kind: str, scales: tuple[float, ...]) -> None:
    check(Shape(0, 0, 2, 64, 32, scales), kind, dtype)


@pytest.mark.skipif(not has_fp8(), reason="vLLM's fp8 caches on the CPU require AVX-512 or AMX")
def test_wrong_scales_are_refused() -> None:
    right = Shape(0, 0, 2, 64, 32, (0.3, 0.07))
    with pytest.raises(UnsupportedError, match="lie elsewhere"):
        check(right, "fp8", torch.float32, dataclasses.replace(right, scales=(0.07, 0.3)))


@pytest.mark.parametrize("swap", ["K by tokens", "V by dimensions", "K behind V"])
def test_a_wrong_description_is_refused(swap: str) -> None:
    shape = Shape(0, 0, 2, 32, 64)
    cache = torch.empty((2, 2, 64, 64))

    def wrong(one: Any) -> Any:
        key, value = describe("CPU_ATTN", [one], shape, "f32")
        if swap == "K by tokens":
            key = dataclasses.replace(key, layout=value.layout)
        elif swap == "V by dimensions":
            value = dataclasses.replace(value, layout=key.layout)
        else:
            key, value = dataclasses.replace(key, arrays=value.arrays), dataclasses.replace(value, arrays=key.arrays)
        return [key, value]

    with pytest.raises(UnsupportedError, match="lie elsewhere"):
        probe(wrong, cache, lambda *given: write("auto", (), *given), shape, torch.float32)


def test_a_backend_that_is_not_described_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="FLASH_ATTN"):
        describe("FLASH_ATTN", [torch.empty(2, 2, 64, 64)], Shape(0, 0, 2, 32, 64), "f32")


@pytest.mark.parametrize(
    "tensor", [torch.empty(2, 2, 64, 32), torch.empty(2, 64, 2, 64), torch.empty(2, 2, 64, 64).transpose(2, 3)]
)
def test_another_shape_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(UnsupportedError, match="CPU_ATTN has a cache"):
        describe("CPU_ATTN", [tensor], Shape(0, 0, 2, 32, 64), "f32")


def test_other_element_types_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="int8"):
        element_type(torch.empty(1, dtype=torch.int8), "int8")
    with pytest.raises(UnsupportedError, match="nvfp4"):
        element_type(torch.empty(1, dtype=torch.uint8), "nvfp4")
