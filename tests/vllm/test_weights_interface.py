"""vLLM's weight-transfer interface against the classes of HMC: methods, parameters, registration, arguments. No engine runs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import asdict, fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine, WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

import hmc
from hmc import weights
from hmc.integrations.vllm._incoming_weights import Incoming
from hmc.integrations.vllm.weights import (
    HMCTrainerInitInfo,
    HMCTrainerWeightTransferEngine,
    HMCWeightTransferEngine,
    HMCWeightTransferInitInfo,
    HMCWeightTransferUpdateInfo,
    register,
)

SIDES = [(HMCWeightTransferEngine, WeightTransferEngine), (HMCTrainerWeightTransferEngine, TrainerWeightTransferEngine)]
MINE = {"counters", "addresses", "init_info_cls", "update_info_cls", "supports_draft_weight_update"}  # no method of vLLM
MORE = {"send_weights": ["epoch"]}  # parameters that vLLM does not pass


def methods(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_") and name not in MINE)


def test_all_that_is_abstract_is_there() -> None:
    for mine, base in SIDES:
        assert not inspect.isabstract(mine)
        assert {name for name in base.__abstractmethods__ if name not in vars(mine)} == set()


@pytest.mark.parametrize(("mine", "base", "name"), [(*pair, name) for pair in SIDES for name in methods(pair[0])])
def test_every_method_is_one_of_vllm_and_has_its_parameters(mine: type, base: type, name: str) -> None:
    found = list(inspect.signature(getattr(mine, name)).parameters.values())
    optional = [one.name for one in found if one.name in MORE.get(name, [])]
    assert all(one.default is not inspect.Parameter.empty for one in found if one.name in optional)
    names = [one.name for one in found if one.name not in optional]
    assert names == list(inspect.signature(getattr(base, name)).parameters)


def test_vllm_finds_the_backend_by_its_entry_point() -> None:
    """In a process of its own, as each of vLLM's processes loads plugins."""
    source = (
        "from vllm.plugins import load_general_plugins; load_general_plugins()\n"
        "from vllm.distributed.weight_transfer import factory as f\n"
        "found = [f.WeightTransferEngineFactory._registry['hmc'](), f.WeightTransferTrainerFactory._registry['hmc']()]\n"
        "print([one.__name__ for one in found])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=110, cwd="/")
    assert done.stdout.splitlines()[-1] == "['HMCWeightTransferEngine', 'HMCTrainerWeightTransferEngine']", done.stderr


def engine() -> HMCWeightTransferEngine:
    register()
    register()
    config = SimpleNamespace(parallel_config=None, model_config=SimpleNamespace(quantization=None))
    made = WeightTransferEngineFactory.create_engine(
        WeightTransferConfig(backend="hmc"), config, torch.device("cpu"), torch.nn.Linear(2, 2)
    )
    assert isinstance(made, HMCWeightTransferEngine)
    return made


def test_infos_pass_through_json() -> None:
    init = HMCWeightTransferInitInfo(["unix:/a", "tcp://10.0.0.1:5000"], "policy", 7.5)
    assert engine().parse_init_info(json.loads(json.dumps(asdict(init)))) == init
    update = HMCWeightTransferUpdateInfo(3, 1.5)
    assert engine().parse_update_info(json.loads(json.dumps(asdict(update)))) == update
    assert engine().parse_update_info({}) == HMCWeightTransferUpdateInfo()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"sources": []},
        {"sources": "unix:/a"},
        {"sources": [5]},
        {"sources": ["unix:/a"], "name": None},
        {"sources": ["unix:/a"], "timeout": 0},
        {"sources": ["unix:/a"], "timeout": float("nan")},
        {"sources": ["unix:/a"], "timeout": True},
        {"sources": ["unix:/a"], "timeout": "5"},
        {"sources": ["unix:/a"], "master_port": 5},
    ],
)
def test_wrong_init_infos_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"HMCWeightTransferEngine|pass"):
        engine().parse_init_info(given)


@pytest.mark.parametrize("given", [{"epoch": -1}, {"epoch": 1.0}, {"epoch": True}, {"timeout": -1}, {"names": ["a"]}])
def test_wrong_update_infos_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"HMCWeightTransferEngine|pass"):
        engine().parse_update_info(given)


def test_an_update_before_the_init_is_refused_and_shutdown_is_idempotent() -> None:
    one = engine()
    for call in (one.start_weight_update, lambda: one.receive_weights(HMCWeightTransferUpdateInfo())):
        with pytest.raises(hmc.InvalidArgumentError, match="init_weight_transfer_engine"):
            call()
    one.shutdown()
    one.shutdown()
    assert set(one.counters().values()) == {0}


class Client:
    """Records what a trainer asks for. ``fails``: the name of a call that raises."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self.fails = fails

    def _call(self, name: str, what: Any = None) -> None:
        self.calls.append((name, json.loads(json.dumps(what))))
        if name == self.fails:
            raise RuntimeError("the engine has failed")

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init", init_info)

    def start_weight_update(self) -> None:
        self._call("start")

    def update_weights(self, update_info: Any) -> None:
        self._call("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish", weight_version)


def test_the_trainer_speaks_the_infos_of_the_engine() -> None:
    assert issubclass(HMCTrainerInitInfo, TrainerInitInfo)
    client, tensors = Client(), {"a": torch.zeros(3)}
    register()
    trainer = WeightTransferTrainerFactory.trainer_init(HMCTrainerInitInfo(rank=0), client=client, source=tensors)
    try:
        trainer.send_weights()
        trainer.send_weights(epoch=9)
        trainer.send_weights()
    finally:
        trainer.shutdown()
        trainer.shutdown()
    [(_, init), *rounds] = client.calls
    assert set(init) == {one.name for one in fields(HMCWeightTransferInitInfo)}
    assert engine().parse_init_info(init).sources == init["sources"]
    epochs = [engine().parse_update_info(what).epoch for name, what in rounds if name == "update"]
    assert epochs == [1, 9, 10]
    assert [name for name, _ in rounds] == ["start", "update", "finish"] * 3


@pytest.mark.parametrize(("listen", "found"), [(None, "unix:"), ("tcp://127.0.0.1:0", "tcp://127.0.0.1:")])
def test_the_engine_gets_the_address_that_the_trainer_listens_at(listen: str | None, found: str) -> None:
    client, tensors = Client(), {"a": torch.arange(1001)}
    trainer = HMCTrainerWeightTransferEngine.trainer_init(HMCTrainerInitInfo(rank=0, listen=listen), client=client, source=tensors)
    try:
        [address] = client.calls[0][1]["sources"]
        assert address.startswith(found)
        one = Incoming([address], "weights", 30)
        assert one.read(0, 30).nbytes == 8 * 1001
        one.close()
    finally:
        trainer.shutdown()


def test_a_trainer_whose_engine_fails_raises_and_may_go_on() -> None:
    client = Client()
    trainer = HMCTrainerWeightTransferEngine.trainer_init(HMCTrainerInitInfo(rank=0), client=client, source={"a": torch.zeros(3)})
    try:
        client.fails = "update"
        with pytest.raises(RuntimeError, match="has failed"):
            trainer.send_weights()
        client.fails = ""
        trainer.send_weights()
    finally:
        trainer.shutdown()
    assert [what for name, what in client.calls if name == "update"] == [{"epoch": 1}, {"epoch": 2}]


def test_what_a_trainer_cannot_publish_is_refused() -> None:
    start = HMCTrainerInitInfo(rank=0)
    with pytest.raises(hmc.InvalidArgumentError, match="source"):
        HMCTrainerWeightTransferEngine.trainer_init(start, client=Client())
    with pytest.raises(hmc.InvalidArgumentError, match="contiguous"):
        HMCTrainerWeightTransferEngine.trainer_init(start, client=Client(), source={"a": torch.zeros(3, 4).T})
    growing = [("a", torch.zeros(3))]
    trainer = HMCTrainerWeightTransferEngine.trainer_init(start, client=Client(), source=growing)
    try:
        growing.append(("b", torch.zeros(4)))
        with pytest.raises(hmc.InvalidArgumentError, match="tensor b"):
            trainer.send_weights()
    finally:
        trainer.shutdown()


def test_a_failed_init_of_the_engine_ends_the_publication() -> None:
    with pytest.raises(RuntimeError, match="has failed"):
        HMCTrainerWeightTransferEngine.trainer_init(HMCTrainerInitInfo(rank=0), client=Client("init"), source={"a": torch.zeros(3)})
    with hmc.Context() as ctx, weights.publish(ctx, {"a": torch.zeros(3)}):  # nothing of it is left in this process
        assert ctx.peers == []
