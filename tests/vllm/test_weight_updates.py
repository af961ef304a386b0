"""Weights of a running engine that a trainer replaces: the tokens of an engine that loaded them from disk, or the old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import Engine, random_prompt, save_llama
from weights_source import Source

from hmc import weights
from hmc.integrations.vllm.weights import HMCTrainerInitInfo, HMCTrainerWeightTransferEngine

COUNT = 12
PROMPTS = [random_prompt(900 + tokens, tokens) for tokens in (1, 33, 150)]
PLAIN: dict[str, Any] = {"weight_transfer_config": {"backend": "hmc"}}
WARM = {"enforce_eager": False, "compilation_config": {"mode": 1, "backend": "eager"}}  # as in test_parallel.py
TWO: dict[str, dict[str, Any]] = {
    "TP": {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    "PP": {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp", **WARM},
}

Tokens = list[list[int]]


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of one shape: A, which engines start with, and B. "wide" is another one."""
    other = {name: tmp_path_factory.mktemp(name) for name in ("B", "wide")}
    return {"A": model, "B": save_llama(other["B"], 12), "wide": save_llama(other["wide"], 13, hidden_size=384)}


@pytest.fixture(scope="module")
def run(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Starts an engine with a model; all end with the module."""
    engines: list[Engine] = []
    folder = tmp_path_factory.mktemp("engines")

    def begin(name: str, **more: Any) -> Engine:
        engines.append(Engine(folders[name], folder / f"{len(engines)}.log", 32, **more))
        engines[-1].wait_ready()
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


def tokens(engine: Engine) -> Tokens:
    """Greedy ones, without what the prefix cache has of former weights."""
    assert engine.idle()
    return [engine.generate(prompt, COUNT)["tokens"] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(run: Callable[..., Engine]) -> dict[str, Tokens]:
    """Of engines that loaded A and B from disk."""
    found = {}
    for name in "AB":
        engine = run(name)
        found[name] = tokens(engine)
        engine.close()
    assert all(a != b for a, b in zip(found["A"], found["B"], strict=True)), "the control of all tests here"
    return found


@pytest.fixture(scope="module")
def engine(run: Callable[..., Engine], expected: dict[str, Tokens]) -> Engine:
    return run("A", **PLAIN)


@pytest.fixture
def source(folders: dict[str, Path]) -> Iterator[Callable[..., Source]]:
    """Starts a rank of a trainer; all end with the test."""
    made: list[Source] = []

    def begin(name: str, *given: int) -> Source:
        made.append(Source(folders[name], *given))
        return made[-1]

    yield begin
    for one in made:
        one.close()


class Client:
    """vLLM's VLLMWeightSyncClient, for an engine of these tests."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def _call(self, method: str, *arguments: Any) -> None:
        error = self.engine.call(method, *arguments)
        if error:
            raise RuntimeError(error)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._call("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update")


def find(engine: Engine, *sources: Source, **more: Any) -> str:
    """Gives the engine its sources. What it raised."""
    return engine.call("init_weight_transfer_engine", {"init_info": {"sources": [one.address() for one in sources], **more}})


def update(engine: Engine, **info: Any) -> str:
    """A whole update of vLLM's interface. What was raised."""
    for method, arguments in (
        ("start_weight_update", []),
        ("update_weights", [{"update_info": info}]),
        ("finish_weight_update", []),
    ):
        error = engine.call(method, *arguments)
        if error:
            return error
    return ""


@pytest.fixture(autouse=True)
def starts_with_a(request: pytest.FixtureRequest, folders: dict[str, Path], expected: dict[str, Tokens]) -> None:
    """The shared engine has A before a test, whatever the tests before it have left."""
    if "engine" not in request.fixturenames:
        return
    engine = request.getfixturevalue("engine")
    if tokens(engine) != expected["A"]:
        back = Source(folders["A"])
        try:
            assert find(engine, back) == ""
            assert update(engine) == ""
        finally:
            back.close()
    assert tokens(engine) == expected["A"]


@pytest.mark.parametrize("kind", ["in place", "vLLM's source"])
def test_a_trained_module_reaches_the_engine(
    engine: Engine, folders: dict[str, Path], expected: dict[str, Tokens], kind: str
) -> None:
    import torch
    from transformers import LlamaForCausalLM
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    from hmc.integrations.vllm.weights import register

    register()
    modules = {name: LlamaForCausalLM.from_pretrained(folders[name], dtype=torch.float32) for name in "AB"}
    module = modules["A"]
    source: Any = weights.from_module(module) if kind == "in place" else ModuleSource(module)
    start = HMCTrainerInitInfo(rank=0)
    before = engine.counters()[0]
    trainer = WeightTransferTrainerFactory.trainer_init(start, client=Client(engine), source=source)
    assert isinstance(trainer, HMCTrainerWeightTransferEngine)
    try:
        assert tokens(engine) == expected["A"]
        saved = {name: value.clone() for name, value in module.state_dict().items()}
        for state, name in ((modules["B"].state_dict(), "B"), (saved, "A")):
            module.load_state_dict(state)
            trainer.send_weights()
            assert tokens(engine) == expected[name]
    finally:
        trainer.shutdown()
    after = engine.counters()[0]
    assert after["updates"] - before["updates"] == 2
    nbytes = sum(value.nbytes for value in module.state_dict().values())
    assert after["bytes_read"] - before["bytes_read"] == 2 * nbytes
    assert "HMC: weights of epoch 2" in engine.text()


def test_shards_of_a_trainer_reach_an_engine(engine: Engine, source: Callable[..., Source], expected: dict[str, Tokens]) -> None:
    ranks = [source("B", rank, 2) for rank in range(2)]
    assert find(engine, *ranks) == ""
    assert update(engine, epoch=1) == ""
    assert tokens(engine) == expected["B"]


def test_a_source_that_is_killed_in_mid_pull_leaves_the_old_weights(
    engine: Engine, source: Callable[..., Source], expected: dict[str, Tokens]
) -> None:
    first = source("B")
    engine.kill_in_pull(first.process.pid, 40)
    assert find(engine, first) == ""
    error = update(engine)
    assert first.process.wait(20) != 0
    assert str(first.process.pid) in error
    assert "PeerLostError" in engine.text()
    assert tokens(engine) == expected["A"]
    assert update(engine) != "", "it has no source"
    assert find(engine, source("B")) == ""
    assert update(engine) == ""
    assert tokens(engine) == expected["B"]


def test_a_pull_goes_on_from_another_source(engine: Engine, source: Callable[..., Source], expected: dict[str, Tokens]) -> None:
    first, second = source("B"), source("B")
    engine.kill_in_pull(first.process.pid, 40)
    assert find(engine, first, second) == ""
    assert update(engine) == ""
    assert first.process.wait(20) != 0
    assert tokens(engine) == expected["B"]


def test_changed_bytes_are_never_loaded(engine: Engine, source: Callable[..., Source], expected: dict[str, Tokens]) -> None:
    spoilt = source("B")
    assert find(engine, spoilt) == ""
    spoilt.spoil()
    assert "digest" in update(engine)
    assert tokens(engine) == expected["A"]


def test_another_model_leaves_the_old_weights(engine: Engine, source: Callable[..., Source], expected: dict[str, Tokens]) -> None:
    assert find(engine, source("wide")) == ""
    assert update(engine) != ""
    assert tokens(engine) == expected["A"]
    assert find(engine, source("B")) == ""
    assert update(engine) == ""
    assert tokens(engine) == expected["B"]


def test_a_part_of_the_model_leaves_the_old_weights(
    engine: Engine, source: Callable[..., Source], expected: dict[str, Tokens]
) -> None:
    for tensors in (1, 20):
        assert find(engine, source("B", 0, 1, tensors)) == ""
        assert "no source publishes" in update(engine)
        assert tokens(engine) == expected["A"]


def test_an_epoch_that_nobody_has_is_a_timeout(engine: Engine, source: Callable[..., Source], expected: dict[str, Tokens]) -> None:
    assert find(engine, source("B"), timeout=240) == ""
    assert "epoch 7" in update(engine, epoch=7, timeout=1)
    assert tokens(engine) == expected["A"]
    assert "epochs" in update(engine, epochs=7)
    assert update(engine, epoch=1) == ""
    assert tokens(engine) == expected["B"]


def test_an_update_without_sources_is_refused(engine: Engine, expected: dict[str, Tokens]) -> None:
    assert engine.call("shutdown_weight_transfer_engine") == ""
    assert "init_weight_transfer_engine" in update(engine)
    missing = engine.call("init_weight_transfer_engine", {"init_info": {"sources": ["unix:/nobody/is/here"], "timeout": 5}})
    assert "/nobody/is/here" in missing
    assert tokens(engine) == expected["A"]


@pytest.mark.parametrize("workers", list(TWO))
def test_two_workers_update_together_or_not_at_all(
    run: Callable[..., Engine], source: Callable[..., Source], expected: dict[str, Tokens], workers: str
) -> None:
    engine = run("A", **PLAIN, **TWO[workers])
    assert tokens(engine) == expected["A"]
    for worker in range(2):
        lost = source("B")
        engine.kill_in_pull(lost.process.pid, 40, worker)
        assert find(engine, lost) == ""
        assert str(lost.process.pid) in update(engine)
        assert tokens(engine) == expected["A"]
    ranks = [source("B", rank, 2) for rank in range(2)]
    assert find(engine, *ranks) == ""
    for worker in range(2):
        engine.fail_load(worker)
        assert "no memory for a test" in update(engine)
        assert tokens(engine) == expected["A"], "the other worker has loaded B"
    assert update(engine) == ""
    assert tokens(engine) == expected["B"]
    assert [one["updates"] for one in engine.counters()] == [1, 1]
    engine.close()
