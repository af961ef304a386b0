"""Layered push: decode has the prompt's blocks when prefill has computed it, and its tokens are those of one engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import Engine, random_prompt

COUNT = 12
LENGTHS = [1, 31, 32, 33, 64, 100, 257]
CHUNK = 96  # tokens of a step: longer prompts are computed in several
PUSH = {"mode": "push", "push_credits": 2}


@pytest.fixture(scope="module")
def pair(start: Callable[..., Engine]) -> tuple[Engine, Engine]:
    """Engines with blocks of 32 and of 64 tokens; each can be either side."""
    engines = start(32, extra=PUSH, max_num_batched_tokens=CHUNK), start(64, extra=PUSH, max_num_batched_tokens=CHUNK)
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
        found = decode.pushed(prompt, COUNT, prefill, f"{decode.port} {tokens}")
        assert found["tokens"] == prefill.generate(prompt, COUNT)["tokens"], tokens
        # vLLM computes the last token of a prompt itself: of one token, that is all.
        assert found["cached"] == (tokens if tokens > 1 else 0), "decode computed tokens that prefill has"
    assert prefill.idle(), "a block of prefill is still held"
    assert decode.idle(), "a block of decode is still held"


def test_a_proxy_that_asks_prefill_first_is_served(sides: tuple[Engine, Engine]) -> None:
    prefill, decode = sides
    for tokens in (33, 257):
        prompt = random_prompt(tokens, tokens)
        params = prefill.prefill(prompt)
        assert params["transfer_mode"] == "push"
        found = decode.generate(prompt, COUNT, params)
        assert found["tokens"] == prefill.generate(prompt, COUNT)["tokens"], tokens
        assert found["cached"] == tokens
    assert prefill.idle()
    assert decode.idle()


@pytest.mark.parametrize("which", [0, -1])
def test_a_zeroed_block_changes_the_tokens(sides: tuple[Engine, Engine], which: int) -> None:
    """The control of the tests above: what decode answers depends on the blocks that were pushed."""
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
    begun = [decode.push(prompt, COUNT, prefill, f"{decode.port} many {i}") for i, prompt in enumerate(prompts)]
    found = [decode.result(mine) for mine, _ in begun]
    for _, theirs in begun:
        prefill.result(theirs)
    assert [one["cached"] for one in found] == [len(prompt) for prompt in prompts]
    assert decode.idle()
    assert prefill.idle()
    assert [one["tokens"] for one in found] == [prefill.generate(prompt, COUNT)["tokens"] for prompt in prompts]


def test_prompts_that_begin_alike_are_in_the_prefix_caches(sides: tuple[Engine, Engine]) -> None:
    """Of either side: prefill pushes blocks that it has not computed, and decode takes those that it has not."""
    prefill, decode = sides
    shared = random_prompt(5, 96)
    for number, tail in enumerate((random_prompt(6, 50), random_prompt(8, 177), [])):
        prompt = shared + tail
        found = decode.pushed(prompt, COUNT, prefill, f"{decode.port} alike {number}")
        assert found["tokens"] == prefill.generate(prompt, COUNT)["tokens"]
    assert prefill.idle()
    assert decode.idle()
    prefill.generate(shared, 1)
    found = decode.pushed(shared + random_prompt(9, 40), COUNT, prefill, f"{decode.port} alike on prefill")
    assert found["cached"] == 136
    assert found["tokens"] == prefill.generate(shared + random_prompt(9, 40), COUNT)["tokens"]
    assert prefill.idle()
    assert decode.idle()


def test_aborted_requests_free_their_blocks_on_both_sides(sides: tuple[Engine, Engine]) -> None:
    """Long before the 30 seconds that prefill keeps them."""
    prefill, decode = sides
    prompts = [random_prompt(300 + seed, 200) for seed in range(6)]
    expected = [prefill.generate(prompt, COUNT)["tokens"] for prompt in prompts]
    assert prefill.idle()
    begun = [decode.push(prompt, COUNT, prefill, f"{decode.port} aborted {i}") for i, prompt in enumerate(prompts)]
    for number, (mine, theirs) in enumerate(begun):
        if number % 3 == 0:
            decode.abort(mine)
        elif number % 3 == 1:
            prefill.abort(theirs)
    for number, (mine, _) in enumerate(begun):
        if number % 3:  # decode computes what prefill did not
            assert decode.result(mine)["tokens"] == expected[number]
    assert decode.idle()
    assert prefill.idle()
