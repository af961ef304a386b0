"""vLLM's own NixlConnector, unmodified, between two engines over the NIXL drop-in: greedy tokens as one engine answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import Engine, free_port, random_prompt

from hmc.integrations.nixl.__main__ import environment

COUNT = 16
PROMPTS = 5


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """A prefill engine and a decode engine."""
    folder = tmp_path_factory.mktemp("nixl")
    engines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        patch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
        for role in ("kv_producer", "kv_consumer"):
            port = free_port()
            patch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port))
            transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_port": port, "kv_buffer_device": "cpu"}
            engines.append(Engine(model, folder / f"{role}.log", 32, {**transfer, "kv_load_failure_policy": "fail"}))
    try:
        for engine in engines:
            engine.wait_ready()
        yield engines[0], engines[1]
    finally:
        for engine in engines:
            engine.close()


@pytest.mark.parametrize("seed", range(PROMPTS))
def test_tokens_equal_those_of_one_engine(pair: tuple[Engine, Engine], seed: int) -> None:
    prefill, decode = pair
    prompt = random_prompt(seed, 100 + 37 * seed)
    alone = decode.generate(prompt, COUNT)
    assert alone["cached"] == 0
    assert decode.idle()
    both = decode.generate(prompt, COUNT, prefill.prefill(prompt))
    assert both["cached"] == len(prompt)  # nothing was computed again
    assert both["tokens"] == alone["tokens"]
    assert prefill.idle(60)  # the notification freed the blocks there
    assert decode.idle()


def test_the_tokens_depend_on_the_blocks_that_moved(pair: tuple[Engine, Engine]) -> None:
    prefill, decode = pair
    prompt = random_prompt(99, 200)
    alone = decode.generate(prompt, COUNT)
    assert decode.idle()
    params = prefill.prefill(prompt)
    prefill.zero(params["remote_block_ids"][0][0])
    assert decode.generate(prompt, COUNT, params)["tokens"] != alone["tokens"]


def test_the_engines_used_the_drop_in(pair: tuple[Engine, Engine]) -> None:
    for engine in pair:
        maps = [Path(f"/proc/{one}/maps").read_text() for one in children(engine.process.pid)]
        assert any("_core" in text for text in maps)
        assert not any("libnixl" in text for text in maps)


def children(process: int) -> list[int]:
    """A process and all below it."""
    found = [process]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    assert os.getpid() not in found
    return found
