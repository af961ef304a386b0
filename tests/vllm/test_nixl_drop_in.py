"""vLLM's own NixlConnector, unmodified, between two engines over the NIXL drop-in: greedy tokens as one engine answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import Engine, free_port, random_prompt

from hmc.integrations._shared.launcher import environment

COUNT = 16
PROMPTS = 5


class Pair:
    """A prefill engine, which may be started again, and a decode engine. What cannot be loaded is computed: cached is 0 then."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model, self._folder = model, folder
        self._port = free_port()
        self.engines: list[Engine] = []
        self.prefill = self.begin("kv_producer", self._port)
        self.decode = self.begin("kv_consumer", free_port())

    def begin(self, role: str, port: int) -> Engine:
        transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_port": port, "kv_buffer_device": "cpu"}
        log = self._folder / f"{len(self.engines)}.log"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", environment("hmc.integrations.nixl")["PYTHONPATH"])
            patch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
            patch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port))
            self.engines.append(Engine(self._model, log, 32, {**transfer, "kv_load_failure_policy": "recompute"}))
        return self.engines[-1]

    def restart(self) -> None:
        self.prefill = self.begin("kv_producer", self._port)
        self.prefill.wait_ready()


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(model, tmp_path_factory.mktemp("nixl"))
    try:
        both.prefill.wait_ready()
        both.decode.wait_ready()
        yield both
    finally:
        for engine in both.engines:
            engine.close()


@pytest.mark.parametrize("seed", range(PROMPTS))
def test_tokens_equal_those_of_one_engine(pair: Pair, seed: int) -> None:
    prompt = random_prompt(seed, 100 + 37 * seed)
    alone = pair.decode.generate(prompt, COUNT)
    assert alone["cached"] == 0
    assert pair.decode.idle()
    both = pair.decode.generate(prompt, COUNT, pair.prefill.prefill(prompt))
    assert both["cached"] == len(prompt)  # nothing was computed again
    assert both["tokens"] == alone["tokens"]
    assert pair.prefill.idle(60)  # the notification freed the blocks there
    assert pair.decode.idle()


def test_the_tokens_depend_on_the_blocks_that_moved(pair: Pair) -> None:
    prompt = random_prompt(99, 200)
    alone = pair.decode.generate(prompt, COUNT)
    assert pair.decode.idle()
    params = pair.prefill.prefill(prompt)
    pair.prefill.zero(params["remote_block_ids"][0][0])
    assert pair.decode.generate(prompt, COUNT, params)["tokens"] != alone["tokens"]
    assert pair.decode.idle()


def test_the_engines_used_the_drop_in(pair: Pair) -> None:
    for engine in (pair.prefill, pair.decode):
        maps = [Path(f"/proc/{one}/maps").read_text() for one in children(engine.process.pid)]
        assert any("libhmc" in text for text in maps)
        assert not any("libnixl" in text for text in maps)


def test_a_killed_prefill_engine_is_done_without_and_its_successor_used(pair: Pair) -> None:
    prompts = [random_prompt(seed, 150) for seed in (200, 201)]
    alone = [pair.decode.generate(prompt, COUNT)["tokens"] for prompt in prompts]
    assert pair.decode.idle()
    params = pair.prefill.prefill(prompts[0])
    pair.prefill.kill()
    found = pair.decode.generate(prompts[0], COUNT, params)
    assert (found["tokens"], found["cached"]) == (alone[0], 0)
    assert pair.decode.idle()
    pair.restart()
    found = pair.decode.generate(prompts[1], COUNT, pair.prefill.prefill(prompts[1]))
    assert (found["tokens"], found["cached"]) == (alone[1], len(prompts[1]))


def children(process: int) -> list[int]:
    """A process and all below it."""
    found = [process]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    assert os.getpid() not in found
    return found
