"""Prefill in one engine, decode in the other, with other block sizes: the tokens are those of one engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import Engine, random_prompt

COUNT = 12
LENGTHS = [1, 31, 32, 33, 64, 100, 257]


@pytest.fixture(scope="module")
def pair(start: Callable[..., Engine]) -> tuple[Engine, Engine]:
    """Engines with blocks of 32 and of 64 tokens; each can be either side."""
    engines = start(32), start(64)
    for engine in engines:
        engine.wait_ready()
    return engines


@pytest.fixture(params=["32 to 64", "64 to 32"])
def sides(request: pytest.FixtureRequest, pair: tuple[Engine, Engine]) -> tuple[Engine, Engine]:
    """Prefill and decode."""
    prefill, decode = pair if request.param == "32 to 64" else pair[::-1]
    assert prefill.idle()
    assert decode.idle()
    return prefill, decode


def test_decode_answers_as_one_engine_does(sides: tuple[Engine, Engine]) -> None:
    prefill, decode = sides
    for tokens in LENGTHS:
        prompt = random_prompt(tokens, tokens)
        found = decode.generate(prompt, COUNT, prefill.prefill(prompt))
        assert found["tokens"] == prefill.generate(prompt, COUNT)["tokens"], tokens
        # vLLM computes the last token of a prompt itself: of one token, that is all.
        assert found["cached"] == (tokens if tokens > 1 else 0), "decode computed tokens that prefill has"
    assert prefill.idle(), "a block of prefill is still held"
    assert decode.idle(), "a block of decode is still held"


@pytest.mark.parametrize("which", [0, -1])
def test_a_zeroed_block_changes_the_tokens(sides: tuple[Engine, Engine], which: int) -> None:
    """The control of the test above: what decode answers depends on the blocks that it pulled."""
    prefill, decode = sides
    prompt = random_prompt(7, 150)
    params = prefill.prefill(prompt)
    prefill.zero(params["remote_block_ids"][0][which])
    found = decode.generate(prompt, COUNT, params)
    assert found["cached"] == len(prompt)
    assert prefill.idle()  # the zeroed block is not in the prefix cache any more
    assert found["tokens"] != prefill.generate(prompt, COUNT)["tokens"]


def test_many_requests_at_once(sides: tuple[Engine, Engine]) -> None:
    prefill, decode = sides
    prompts = [random_prompt(100 + seed, 20 + 23 * seed) for seed in range(8)]
    begun = [prefill.start(prompt, 1, {"do_remote_decode": True}) for prompt in prompts]
    params = [prefill.result(name)["params"] for name in begun]
    begun = [decode.start(prompt, COUNT, one) for prompt, one in zip(prompts, params, strict=True)]
    found = [decode.result(name)["tokens"] for name in begun]
    assert decode.idle()
    assert prefill.idle()
    assert found == [prefill.generate(prompt, COUNT)["tokens"] for prompt in prompts]


def test_only_what_is_not_in_the_prefix_cache_travels(sides: tuple[Engine, Engine]) -> None:
    """Prompts that begin alike: decode has these blocks, and pulls the others, from the middle of a block of prefill."""
    prefill, decode = sides
    shared = random_prompt(5, 96)
    for tail in (random_prompt(6, 50), random_prompt(8, 77), []):
        prompt = shared + tail
        found = decode.generate(prompt, COUNT, prefill.prefill(prompt))
        assert found["tokens"] == prefill.generate(prompt, COUNT)["tokens"]
    assert prefill.idle()
    assert decode.idle()


def test_aborted_requests_free_their_blocks_on_both_sides(sides: tuple[Engine, Engine]) -> None:
    """Long before the 30 seconds that prefill keeps them."""
    prefill, decode = sides
    prompts = [random_prompt(300 + seed, 200) for seed in range(5)]  # 20 of 31 blocks of 64 tokens
    params = [prefill.prefill(prompt) for prompt in prompts]
    begun = [decode.start(prompt, COUNT, one) for prompt, one in zip(prompts, params, strict=True)]
    for name in begun[::2]:
        decode.abort(name)
    for name, prompt in zip(begun[1::2], prompts[1::2], strict=True):
        assert decode.result(name)["tokens"] == prefill.generate(prompt, COUNT)["tokens"]
    assert decode.idle()
    assert prefill.idle()


def test_an_aborted_prefill_keeps_nothing(sides: tuple[Engine, Engine]) -> None:
    prefill, _ = sides
    prefill.abort(prefill.start(random_prompt(9, 200), 300, {"do_remote_decode": True}))
    assert prefill.idle()
