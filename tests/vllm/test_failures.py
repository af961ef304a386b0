"""Prefill engines that are killed, restarted, or too late: decode computes what it could not load, and frees all blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import Engine, free_port, random_prompt

COUNT = 12
LEASE = 10.0  # seconds; on a busy machine decode asks late


class Pair:
    """A decode engine, and prefill engines of equal block size that may be killed."""

    def __init__(self, start: Callable[..., Engine]) -> None:
        self._start = start
        self.port = free_port()
        self.decode = start(32, "kv_consumer")
        self.prefill = self.begin()
        self.decode.wait_ready()
        self.prefill.wait_ready()

    def begin(self) -> Engine:
        return self._start(32, "kv_producer", self.port, {"kv_lease_duration": LEASE})

    def restart(self) -> None:
        self.prefill.close()
        self.prefill = self.begin()
        self.prefill.wait_ready()


@pytest.fixture(scope="module")
def pair(start: Callable[..., Engine]) -> Pair:
    return Pair(start)


def test_equal_blocks(pair: Pair) -> None:
    for tokens in (1, 32, 100, 257):
        prompt = random_prompt(tokens, tokens)
        found = pair.decode.generate(prompt, COUNT, pair.prefill.prefill(prompt))
        assert found["tokens"] == pair.prefill.generate(prompt, COUNT)["tokens"], tokens
        assert found["cached"] == (tokens if tokens > 1 else 0)
    assert pair.prefill.idle()
    assert pair.decode.idle()


def test_an_expired_request_is_computed_by_decode(pair: Pair) -> None:
    prompt = random_prompt(20, 150)
    params = pair.prefill.prefill(prompt)
    assert not pair.prefill.idle(0)
    assert pair.prefill.idle(4 * LEASE)
    found = pair.decode.generate(prompt, COUNT, params)
    assert found["cached"] == 0
    assert found["tokens"] == pair.prefill.generate(prompt, COUNT)["tokens"]
    assert pair.decode.idle()
    assert "is not kept here" in pair.decode.text()


def test_wrong_params_are_computed_by_decode(pair: Pair) -> None:
    prompt = random_prompt(21, 80)
    params = pair.prefill.prefill(prompt)
    expected = pair.prefill.generate(prompt, COUNT)["tokens"]
    wrong = [{"remote_port": 70000}, {"remote_host": None}, {"remote_request_id": "unknown"}, {"remote_port": free_port()}]
    for change in wrong:
        found = pair.decode.generate(prompt, COUNT, {**params, **change})
        assert found["tokens"] == expected, change
        assert pair.decode.idle()
    assert pair.prefill.idle()


def test_decode_computes_when_prefill_is_killed_and_loads_from_its_successor(pair: Pair) -> None:
    prompts = [random_prompt(400 + seed, 100 + 40 * seed) for seed in range(8)]
    expected = [pair.prefill.generate(prompt, COUNT)["tokens"] for prompt in prompts]
    params = [pair.prefill.prefill(prompt) for prompt in prompts]
    begun = [pair.decode.start(prompt, COUNT, one) for prompt, one in zip(prompts, params, strict=True)]
    pair.prefill.kill()
    assert [pair.decode.result(name)["tokens"] for name in begun] == expected
    assert pair.decode.idle()

    found = pair.decode.generate(prompts[0], COUNT, params[0])  # nobody listens there
    assert (found["tokens"], found["cached"]) == (expected[0], 0)
    assert pair.decode.idle()

    pair.restart()
    found = pair.decode.generate(prompts[0], COUNT, params[0])  # another engine listens there
    assert (found["tokens"], found["cached"]) == (expected[0], 0)
    assert pair.decode.idle()
    found = pair.decode.generate(prompts[1], COUNT, pair.prefill.prefill(prompts[1]))
    assert (found["tokens"], found["cached"]) == (expected[1], len(prompts[1]))
    assert pair.decode.idle()
    assert pair.prefill.idle()


def test_prefill_frees_its_blocks_when_decode_is_killed(pair: Pair) -> None:
    """The last test of the pair."""
    prompts = [random_prompt(500 + seed, 300) for seed in range(4)]
    params = [pair.prefill.prefill(prompt) for prompt in prompts]
    for prompt, one in zip(prompts, params, strict=True):
        pair.decode.start(prompt, 200, one)
    pair.decode.kill()
    assert pair.prefill.idle(4 * LEASE)
    assert pair.prefill.generate(prompts[0], 1)["tokens"]
