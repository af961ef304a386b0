"""Weights as a worker of a vLLM engine reads them, without vLLM: whole tensors of sources of any sharding. Every byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from weights_lab import NAMES, Lab, after
from weights_sides import MODEL, Source, value

import hmc
from hmc import weights
from hmc.integrations.vllm._incoming_weights import Incoming, _target
from hmc.weights._manifest import Shard

OTHER_SHAPES = {"3.scale": (1,)}  # a scalar is published as one element


def incoming(*sources: Source, **more: Any) -> Incoming:
    return Incoming([one.address for one in sources], more.get("name", "weights"), more.get("timeout", 30))


def arrays(one: Incoming) -> dict[str, Any]:
    assert one._plan is not None
    return {name: tensor.numpy() for name, tensor in one._plan.pulled()[1]}


def check(one: Incoming, epoch: int, names: list[str] = NAMES) -> None:
    found = arrays(one)
    assert sorted(found) == sorted(names)
    for name, array in found.items():
        wanted = value(name, epoch)
        assert array.shape == OTHER_SHAPES.get(name, wanted.shape), name
        assert array.tobytes() == wanted.tobytes(), name


@pytest.fixture
def ends() -> Iterator[list[Incoming]]:
    made: list[Incoming] = []
    yield made
    for one in made:
        one.close()
        one.close()


@pytest.mark.parametrize("size", [1, 3])
def test_shards_become_whole_tensors(lab: Lab, ends: list[Incoming], size: int) -> None:
    ends.append(incoming(*(lab.source(rank, size) for rank in range(size))))
    read = ends[0].read(None, 30)
    assert (read.epoch, read.nbytes) == (1, sum(value(name, 1).nbytes for name in MODEL))
    assert ends[0].nbytes == read.nbytes
    check(ends[0], 1)
    assert ends[0].read(1, 30).epoch == 1


def test_sources_of_different_tensors_add_up(lab: Lab, ends: list[Incoming]) -> None:
    ends.append(incoming(lab.source(names=NAMES[:4]), lab.source(names=NAMES[3:])))
    ends[0].read(1, 30)
    check(ends[0], 1)


def test_a_region_that_no_source_has_is_named(lab: Lab) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match="embed"):
        incoming(lab.source(0, 2))


def test_a_killed_source_is_replaced_or_an_error(
    lab: Lab, small_tasks: None, monkeypatch: pytest.MonkeyPatch, ends: list[Incoming]
) -> None:
    first, second = lab.source(), lab.source()
    ends.append(incoming(first, second))
    after(monkeypatch, 5, lambda worker: first.kill())
    ends[0].read(None, 30)
    check(ends[0], 1)
    second.kill()
    with pytest.raises(hmc.PeerLostError):
        ends[0].read(None, 30)
    with pytest.raises(hmc.InvalidArgumentError, match="failed"):
        list(ends[0].tensors())


def test_what_is_not_there_is_an_error_by_the_deadline(lab: Lab, ends: list[Incoming]) -> None:
    source = lab.source()
    begun = time.monotonic()
    for seconds in (1, 15):  # a busy machine may not be connected within the second
        with pytest.raises(hmc.HmcTimeoutError) as caught:
            incoming(source, name="policy", timeout=seconds)
        if "'policy'" in str(caught.value):
            break
    assert "'policy'" in str(caught.value)
    with pytest.raises(hmc.HmcError, match="/nobody/is/here"):
        Incoming(["unix:/nobody/is/here"], "weights", 5)
    ends.append(incoming(source))
    with pytest.raises(hmc.HmcTimeoutError, match="epoch 7"):
        ends[0].read(7, 1)
    assert time.monotonic() - begun < 60
    ends[0].read(1, 30)
    check(ends[0], 1)


def test_tensors_that_no_memory_holds_are_refused() -> None:
    shape = (1 << 24, 1 << 24)
    shard = Shard.of("huge", "float64", shape, (0, 0), shape, 0, 0)
    with pytest.raises(hmc.OutOfMemoryError, match=r"tensor huge of shape \(16777216, 16777216\)"):
        _target([SimpleNamespace(shards=[shard])])  # type: ignore[list-item]


def test_another_job_is_refused() -> None:
    tensors = {"x": np.arange(1001, dtype=np.float32)}
    with hmc.Context(listen="tcp://127.0.0.1:0", key="a" * 32) as ctx, weights.publish(ctx, tensors):
        [address] = [one for one in ctx.addresses if one.startswith("tcp")]
        with pytest.raises(hmc.HmcError):
            Incoming([address], "weights", 10)


def test_torch_tensors(ends: list[Incoming]) -> None:
    torch = pytest.importorskip("torch")
    tensors = {
        "half": torch.randn(37, 5).to(torch.bfloat16),
        "eight": torch.randn(33, 3).to(torch.float8_e4m3fn),
        "whole": torch.randint(0, 1 << 40, (7,)),
        "none": torch.empty(0, 4),
    }
    with hmc.Context() as ctx, weights.publish(ctx, tensors, epoch=2):
        ends.append(Incoming(ctx.addresses[:1], "weights", 30))
        assert ends[0].read(2, 30).epoch == 2
        found = dict(ends[0].tensors())
        assert list(found) == list(tensors)
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name
        found.clear()
