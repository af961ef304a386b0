"""Engines whose cache is fp8 and whose model is bfloat16, with different block sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engines import Engine, random_prompt

COUNT = 12

pytestmark = pytest.mark.skipif(
    torch.cpu._is_amx_tile_supported() or not torch.cpu._is_avx512_supported(),
    reason="fp8 caches on the CPU require AVX-512, and the layout of AMX is not described",
)


@pytest.fixture(scope="module")
def pair(start: Callable[..., Engine]) -> tuple[Engine, Engine]:
    engines = tuple(start(block, dtype="bfloat16", kv_cache_dtype="fp8") for block in (32, 64))
    for engine in engines:
        engine.wait_ready()
    return engines


@pytest.mark.parametrize("order", [1, -1], ids=["32 to 64", "64 to 32"])
def test_decode_answers_as_one_engine_does(pair: tuple[Engine, Engine], order: int) -> None:
    prefill, decode = pair[::order]
    assert decode.idle()
    for tokens in (2, 64, 100, 257):
        prompt = random_prompt(tokens, tokens)
        found = decode.generate(prompt, COUNT, prefill.prefill(prompt))
        assert prefill.idle()
        assert found["tokens"] == prefill.generate(prompt, COUNT)["tokens"], tokens
        assert found["cached"] == tokens

    prompt = random_prompt(7, 150)
    params = prefill.prefill(prompt)
    prefill.zero(params["remote_block_ids"][0][0])
    found = decode.generate(prompt, COUNT, params)
    assert prefill.idle()
    assert found["tokens"] != prefill.generate(prompt, COUNT)["tokens"], "the control: a zeroed block changes nothing"
