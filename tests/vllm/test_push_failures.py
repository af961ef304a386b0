"""Layered push while an engine is killed or restarted, and while prefill takes blocks away from prompts: the tokens stay right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import Engine, free_port, random_prompt

COUNT = 12
CHUNK = 32  # tokens of a step, so that a push takes many


class Pair:
    """A decode engine, and prefill engines of another block size that may be killed."""

    def __init__(self, start: Callable[..., Engine]) -> None:
        self._start = start
        self.port = free_port()
        self.decode = start(64, "kv_consumer", extra={"mode": "push"})
        self.prefill = self.begin()
        self.decode.wait_ready()
        self.prefill.wait_ready()

    def begin(self) -> Engine:
        extra = {"mode": "push", "kv_lease_duration": 10.0}
        # Prompts are admitted whatever is free, so that some lose their blocks.
        engine = {"max_num_batched_tokens": CHUNK, "scheduler_reserve_full_isl": False, "disable_log_stats": False}
        return self._start(32, "kv_producer", self.port, extra, **engine)

    def restart(self) -> None:
        self.prefill.close()
        self.prefill = self.begin()
        self.prefill.wait_ready()


@pytest.fixture(scope="module")
def pair(start: Callable[..., Engine]) -> Pair:
    return Pair(start)


def test_prompts_of_many_chunks_are_pushed(pair: Pair) -> None:
    for tokens in (1, 100, 400):
        prompt = random_prompt(tokens, tokens)
        found = pair.decode.pushed(prompt, COUNT, pair.prefill, f"chunks {tokens}")
        assert found["tokens"] == pair.prefill.generate(prompt, COUNT)["tokens"], tokens
        assert found["cached"] == (tokens if tokens > 1 else 0)
    assert pair.prefill.idle()
    assert pair.decode.idle()


def test_prompts_that_lose_their_blocks_are_pushed(pair: Pair) -> None:
    """Ordinary requests of prefill grow until prompts have to give up their blocks, and are computed again later."""
    prompts = [random_prompt(700 + seed, 330) for seed in range(4)]
    expected = [pair.decode.generate(prompt, COUNT)["tokens"] for prompt in prompts]
    assert pair.decode.idle()
    others = [pair.prefill.start(random_prompt(600 + seed, 290), 200) for seed in range(5)]
    begun = [pair.decode.push(prompt, COUNT, pair.prefill, f"preempted {i}") for i, prompt in enumerate(prompts)]
    found = [pair.decode.result(mine) for mine, _ in begun]
    assert [one["tokens"] for one in found] == expected
    for name in [*others, *(theirs for _, theirs in begun)]:
        pair.prefill.result(name)
    assert pair.prefill.preemptions() > 0, "the test has not preempted a request"
    assert pair.prefill.idle()
    assert pair.decode.idle()


def test_a_request_that_no_prefill_engine_has_is_computed_by_decode(pair: Pair) -> None:
    """Nobody listens at the port."""
    prompt = random_prompt(21, 80)
    expected = pair.prefill.generate(prompt, COUNT)["tokens"]
    params = {"do_remote_prefill": True, "transfer_id": "none", "remote_host": "127.0.0.1", "remote_port": free_port()}
    found = pair.decode.generate(prompt, COUNT, params)
    assert (found["tokens"], found["cached"]) == (expected, 0)
    assert pair.decode.idle()
    assert pair.prefill.idle()


def test_decode_computes_when_prefill_is_killed_and_is_served_by_its_successor(pair: Pair) -> None:
    prompts = [random_prompt(400 + seed, 400) for seed in range(4)]
    expected = [pair.prefill.generate(prompt, COUNT)["tokens"] for prompt in prompts]
    assert pair.prefill.idle()
    begun = [pair.decode.push(prompt, COUNT, pair.prefill, f"killed {i}") for i, prompt in enumerate(prompts)]
    pair.prefill.result(begun[0][1])  # the first one is computed, the others are not
    pair.prefill.kill()
    found = [pair.decode.result(mine) for mine, _ in begun]
    assert [one["tokens"] for one in found] == expected
    assert any(one["cached"] == 0 for one in found), "prefill was killed too late"
    assert pair.decode.idle()

    pair.restart()
    found = [pair.decode.pushed(prompts[1], COUNT, pair.prefill, "after the restart")]
    assert (found[0]["tokens"], found[0]["cached"]) == (expected[1], 400)
    assert pair.decode.idle()
    assert pair.prefill.idle()


def test_prefill_frees_its_blocks_when_decode_is_killed(pair: Pair) -> None:
    """The last test of the pair."""
    prompts = [random_prompt(500 + seed, 400) for seed in range(4)]
    begun = [pair.decode.push(prompt, 100, pair.prefill, f"decode killed {i}") for i, prompt in enumerate(prompts)]
    pair.prefill.result(begun[0][1])
    pair.decode.kill()
    for _, theirs in begun[1:]:
        pair.prefill.result(theirs)
    assert pair.prefill.idle(40)
    assert pair.prefill.generate(prompts[0], 1)["tokens"]
