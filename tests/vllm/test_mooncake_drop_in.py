"""vLLM's own MooncakeConnector, unmodified, between two engines over the Mooncake drop-in: greedy tokens as one engine answers.

The connector asks torch which accelerator is current, and torch for CPUs raises: in these engines it answers 0.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import TOKENS, Engine, free_port, random_prompt

from hmc.integrations._shared.launcher import environment

BLOCK = 32
COUNT = 16
ACCELERATOR = "import torch\ntorch.accelerator.current_device_index = lambda: 0\n"
PROMPTS = 4


class Pair:
    """A prefill engine, which may be started again, and a decode engine."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model, self._folder = model, folder
        self._port = free_port()  # of the prefill engine's bootstrap server
        self._transfers = 0
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(ACCELERATOR)
        self.engines: list[Engine] = []
        self.prefill = self.begin("kv_producer")
        self.decode = self.begin("kv_consumer")

    def begin(self, role: str) -> Engine:
        transfer = {
            "kv_connector": "MooncakeConnector",
            "kv_role": role,
            "kv_port": free_port(),
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"mooncake_protocol": "tcp"},
        }
        log = self._folder / f"{len(self.engines)}.log"
        with pytest.MonkeyPatch.context() as patch:
            found = environment("hmc.integrations.mooncake")["PYTHONPATH"]
            patch.setenv("PYTHONPATH", os.pathsep.join([str(self._folder / "site"), found]))
            patch.setenv("VLLM_HOST_IP", "127.0.0.1")
            patch.setenv("VLLM_MOONCAKE_BOOTSTRAP_PORT", str(self._port))
            self.engines.append(Engine(self._model, log, BLOCK, transfer))
        return self.engines[-1]

    def restart(self) -> None:
        self.prefill = self.begin("kv_producer")
        self.prefill.wait_ready()

    def prefilled(self, prompt: list[int]) -> dict[str, Any]:
        """Computes a prompt there; returns the kv_transfer_params of its decoding here."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/query", timeout=20) as answer:
            engine = json.load(answer)["0"]["engine_id"]
        self._transfers += 1
        name = f"transfer-{self._transfers}"
        self.prefill.generate(prompt, 1, {"do_remote_decode": True, "transfer_id": name})
        return {
            "do_remote_prefill": True,
            "remote_engine_id": engine,
            "remote_bootstrap_addr": f"http://127.0.0.1:{self._port}",
            "transfer_id": name,
        }


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(model, tmp_path_factory.mktemp("mooncake"))
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
    both = pair.decode.generate(prompt, COUNT, pair.prefilled(prompt))
    assert both["cached"] == len(prompt)  # nothing was computed again
    assert both["tokens"] == alone["tokens"]
    assert pair.prefill.idle(60)
    assert pair.decode.idle()


def test_the_tokens_depend_on_the_blocks_that_moved(pair: Pair) -> None:
    prompt = random_prompt(99, 200)
    alone = pair.decode.generate(prompt, COUNT)
    assert pair.decode.idle()
    params = pair.prefilled(prompt)
    for block in range(TOKENS // BLOCK):
        pair.prefill.zero(block)
    assert pair.decode.generate(prompt, COUNT, params)["tokens"] != alone["tokens"]
    assert pair.decode.idle()


def test_the_engines_used_the_drop_in(pair: Pair) -> None:
    for engine in (pair.prefill, pair.decode):
        maps = [Path(f"/proc/{one}/maps").read_text() for one in children(engine.process.pid)]
        assert any("libhmc" in text for text in maps)
        assert not any("mooncake/engine.so" in text for text in maps)


def test_the_successor_of_a_killed_prefill_engine_is_used(pair: Pair) -> None:
    # What was to come from the killed one the connector waits for itself, a minute and more, on a socket of its own.
    prompt = random_prompt(201, 150)
    alone = pair.decode.generate(prompt, COUNT)
    assert pair.decode.idle()
    pair.prefill.kill()
    pair.restart()
    found = pair.decode.generate(prompt, COUNT, pair.prefilled(prompt))
    assert (found["tokens"], found["cached"]) == (alone["tokens"], len(prompt))


def children(process: int) -> list[int]:
    """A process and all below it."""
    found = [process]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    assert os.getpid() not in found
    return found
