"""The trainer's side of vLLM's weight transfer, without vLLM and torch: ranks are threads, and one of them cannot publish."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faked_vllm import imported

import hmc

RANK = threading.local()


class Group:
    """torch.distributed of two ranks, which are threads."""

    def __init__(self) -> None:
        self._meet = threading.Barrier(2, timeout=20)
        self._said: list[Any] = [None, None]

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return 2

    def all_gather_object(self, into: list[Any], mine: Any) -> None:
        self._said[RANK.number] = mine
        self._meet.wait()
        into[:] = self._said
        self._meet.wait()

    def barrier(self) -> None:
        self._meet.wait()


class Engine:
    """The client of vLLM, and the base of its engine."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    base = SimpleNamespace(TrainerInitInfo=object, TrainerWeightTransferEngine=Engine)
    modules = {"vllm.distributed.weight_transfer.base": base}
    with imported(monkeypatch, "hmc.integrations.vllm._weight_trainer", Group(), modules) as found:
        yield found


def on_two_ranks(rank: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


class Client:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init_weight_transfer_engine(self, info: Any) -> None:
        pass

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, info: Any) -> None:
        self.calls.append(info["epoch"])

    def finish_weight_update(self) -> None:
        self.calls.append("finish")


@pytest.mark.parametrize("broken", [0, 1])
def test_the_engine_is_not_asked_where_a_rank_cannot_publish(trainer: Any, broken: int) -> None:
    client, errors = Client(), [[], []]  # type: ignore[var-annotated]
    epochs: list[int] = [0, 0]

    def rank(number: int) -> None:
        RANK.number = number
        source = {f"x{number}": np.ones(4)}
        info = trainer.HMCTrainerInitInfo()
        made = trainer.HMCTrainerWeightTransferEngine(client=client, source=source, is_sender=number == 0, info=info)
        publish = made._publish

        def fails(epoch: int) -> None:
            raise hmc.InvalidArgumentError("its array was resized")

        for attempt in range(2):
            made._publish = fails if number == broken and attempt == 0 else publish
            try:
                made.send_weights()
            except hmc.HmcError as error:
                errors[number].append(error)
        epochs[number] = made._publication.epoch
        made.shutdown()

    on_two_ranks(rank)
    assert [len(one) for one in errors] == [1, 1]
    assert isinstance(errors[broken][0], hmc.InvalidArgumentError)
    assert f"rank {broken} raised InvalidArgumentError: its array was resized" in str(errors[1 - broken][0])
    assert client.calls == ["start", 2, "finish"]  # of the second attempt, whose epoch is the same on both
    assert epochs == [2, 2]


@pytest.mark.parametrize("broken", [0, 1])
def test_every_rank_is_refused_where_one_cannot_publish(trainer: Any, broken: int) -> None:
    errors: list[BaseException | None] = [None, None]

    def rank(number: int) -> None:
        RANK.number = number
        info = trainer.HMCTrainerInitInfo()
        info.is_sender = number == 0
        source = {f"x{number}": np.ones((4, 4))[:, :: 2 if number == broken else 1]}
        try:
            trainer.HMCTrainerWeightTransferEngine.trainer_init(info, client=Client(), source=source)
        except hmc.HmcError as error:
            errors[number] = error

    on_two_ranks(rank)
    assert isinstance(errors[broken], hmc.InvalidArgumentError)
    assert type(errors[1 - broken]) is hmc.HmcError  # it waited for the addresses of the other one
    assert f"weights were not published: rank {broken} raised InvalidArgumentError" in str(errors[1 - broken])


def test_a_wrong_epoch_does_not_spoil_the_next_one(trainer: Any) -> None:
    client, errors, epochs = Client(), [[], []], [0, 0]  # type: ignore[var-annotated]

    def rank(number: int) -> None:
        RANK.number = number
        info = trainer.HMCTrainerInitInfo()
        made = trainer.HMCTrainerWeightTransferEngine(
            client=client, source={f"x{number}": np.ones(4)}, is_sender=number == 0, info=info
        )
        for epoch in (-5, "text", None):
            try:
                made.send_weights(epoch)
            except (hmc.InvalidArgumentError, TypeError) as error:
                errors[number].append(type(error))
        epochs[number] = made._publication.epoch
        made.shutdown()

    on_two_ranks(rank)
    assert errors == [[hmc.InvalidArgumentError, TypeError]] * 2
    assert epochs[0] == epochs[1] > 0
    assert client.calls == ["start", epochs[0], "finish"]


class Tensor:
    """A tensor of torch, in some of its calls."""

    def __init__(self, shape: tuple[int, ...], number: int) -> None:
        self.shape, self.number = shape, number

    def copy_(self, other: Tensor) -> None:
        self.number = other.number


def test_a_source_yields_what_it_had_at_first(trainer: Any) -> None:
    into = {"x": Tensor((3,), 1), "y": Tensor((2, 2), 1)}
    trainer._copied([("y", Tensor((2, 2), 2)), ("x", Tensor((3,), 2))], into)
    assert [one.number for one in into.values()] == [2, 2]
    wrong = {
        "did not yield 1 of its 2 tensors: \\['y'\\]": [("x", Tensor((3,), 3))],
        "tensor x has shape \\(1,\\), and had \\(3,\\)": [("x", Tensor((1,), 3)), ("y", Tensor((2, 2), 3))],
        "tensor z: the source had no such": [("z", Tensor((3,), 3))],
    }
    for text, source in wrong.items():
        with pytest.raises(hmc.InvalidArgumentError, match=text):
            trainer._copied(source, into)
