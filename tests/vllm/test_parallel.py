"""Tensor and pipeline parallel prefill, decode by another number of workers, and other block sizes: the tokens of one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engines import Engine, random_prompt

COUNT = 12


# The second stage of vLLM's CPU runner has no buffers until the model was warmed up, which enforce_eager leaves out.
WARM = {"enforce_eager": False, "compilation_config": {"mode": 1, "backend": "eager"}}
STEPS: dict[str, dict[str, Any]] = {"pull": {}, "push": {"max_num_batched_tokens": 128}}
TWO: dict[str, dict[str, Any]] = {"TP": {"tensor_parallel_size": 2}, "PP": {"pipeline_parallel_size": 2, **WARM}}


@pytest.fixture(scope="module", params=["pull", "push"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["TP", "PP"])
def pair(request: pytest.FixtureRequest, start: Callable[..., Engine], one: Engine, mode: str) -> Iterator[tuple[Engine, Engine]]:
    """An engine of one worker, and one of two. In mode push, prompts are computed in steps of 128 tokens."""
    two = start(32, extra={"mode": mode}, distributed_executor_backend="mp", **TWO[request.param], **STEPS[mode])
    two.wait_ready()
    yield one, two
    two.close()


@pytest.fixture(scope="module")
def one(start: Callable[..., Engine], mode: str) -> Iterator[Engine]:
    engine = start(64, extra={"mode": mode}, **STEPS[mode])
    engine.wait_ready()
    yield engine
    engine.close()


@pytest.mark.parametrize("order", [1, -1], ids=["1 to 2", "2 to 1"])
def test_another_number_of_workers(pair: tuple[Engine, Engine], order: int, mode: str) -> None:
    prefill, decode = pair[::order]
    assert prefill.idle()
    assert decode.idle()
    for tokens in (2, 32, 100, 257):
        prompt = random_prompt(tokens, tokens)
        if mode == "push":
            found = decode.pushed(prompt, COUNT, prefill, f"{pair[1].port} {order} {tokens}")
        else:
            found = decode.generate(prompt, COUNT, prefill.prefill(prompt))
        assert found["tokens"] == pair[0].generate(prompt, COUNT)["tokens"], tokens
        assert found["cached"] == tokens, "decode computed tokens that prefill has"
    assert prefill.idle(), "a block of prefill is still held"
    assert decode.idle(), "a block of decode is still held"


def test_a_zeroed_block_changes_the_tokens(pair: tuple[Engine, Engine]) -> None:
    """The control of the test above."""
    decode, prefill = pair
    prompt = random_prompt(7, 150)
    params = prefill.prefill(prompt)
    prefill.zero(params["remote_block_ids"][0][0])
    found = decode.generate(prompt, COUNT, params)
    assert found["cached"] == len(prompt)
    assert decode.idle()
    assert found["tokens"] != decode.generate(prompt, COUNT)["tokens"]
    assert prefill.idle()
