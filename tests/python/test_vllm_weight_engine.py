"""The engine's side of vLLM's weight transfer, without vLLM and torch: workers are threads, and one of them fails."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from faked_vllm import imported

import hmc
from hmc.integrations.vllm._incoming_weights import Read

RANK = threading.local()


class Workers:
    """torch.distributed, and a group of vLLM, of some workers, which are threads."""

    def __init__(self, count: int) -> None:
        self.world_size, self.cpu_group = count, None
        self._meet = threading.Barrier(count, timeout=20)
        self._said: list[Any] = [None] * count

    @property
    def rank_in_group(self) -> int:
        return int(RANK.number)

    def all_gather_object(self, into: list[Any], mine: Any, group: Any = None) -> None:
        self._said[RANK.number] = mine
        self._meet.wait()
        into[:] = self._said
        self._meet.wait()


class Base:
    """vLLM's base of an engine."""

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.model, self.model_config = model, None


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Workers:
    return Workers(request.param)


@pytest.fixture
def engine(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    base = SimpleNamespace(WeightTransferEngine=Base, WeightTransferInitInfo=object, WeightTransferUpdateInfo=object)
    groups = SimpleNamespace(get_tp_group=lambda: workers, get_pp_group=lambda: SimpleNamespace(world_size=1, rank_in_group=0))
    modules = {
        "vllm.distributed.weight_transfer.base": base,
        "vllm.distributed.parallel_state": groups,
        "hmc.integrations.vllm._weight_loading": SimpleNamespace(Kept=None, load=None),
    }
    with imported(monkeypatch, "hmc.integrations.vllm._weight_engine", workers, modules) as found:
        yield found


class Kept:
    """The model as it was; of one worker there is no memory for it."""

    def __init__(self, model: Any) -> None:
        if model.fails == "Kept":
            raise MemoryError("no memory to keep the model")
        self.model = model
        model.kept = weakref.ref(self)

    def restore(self) -> None:
        self.model.weights = "old"


def load(model: Any, *_: Any) -> None:
    model.weights = "new"
    if model.fails == "load":
        raise ValueError("of load_weights()")


def made(engine: Any, fails: str) -> Any:
    found = engine.HMCWeightTransferEngine(None, None, None, SimpleNamespace(fails=fails, weights="old", kept=lambda: None))
    found._incoming = SimpleNamespace(
        accepted=False, sources=[], read=lambda epoch, timeout: Read(7, 10, 0.1), tensors=list, close=lambda: None
    )
    engine.Kept, engine.load = Kept, load
    return found


@pytest.mark.parametrize("workers", [2], indirect=True)
@pytest.mark.parametrize("fails", ["Kept", "load"])
def test_every_worker_keeps_its_weights_where_one_cannot_load(engine: Any, fails: str) -> None:
    errors: list[BaseException | None] = [None, None]
    engines = [made(engine, fails if number == 1 else "") for number in range(2)]

    def work(number: int) -> None:
        RANK.number = number
        try:
            engines[number].receive_weights(SimpleNamespace(epoch=None, timeout=20))
        except Exception as error:
            errors[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert type(errors[1]) is (MemoryError if fails == "Kept" else ValueError)
    assert isinstance(errors[0], hmc.HmcError)  # worker 0 waited for an answer, and took one of the next call
    assert "another worker of the engine has failed" in str(errors[0])
    assert [one.model.weights for one in engines] == ["old", "old"]


@pytest.mark.parametrize("workers", [1], indirect=True)
def test_a_failed_update_keeps_no_copy_of_the_model(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    RANK.number, failed = 0, False
    monkeypatch.setattr(engine.logger, "warning", lambda *_: None)  # pytest keeps what is logged
    one = made(engine, "load")
    gc.collect()
    gc.disable()
    try:
        try:
            one.receive_weights(SimpleNamespace(epoch=None, timeout=20))
        except ValueError:
            failed = True
        assert failed
        assert one.model.kept() is None
    finally:
        gc.enable()
