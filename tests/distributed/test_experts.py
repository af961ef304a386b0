"""hmc.experts with rows of torch on the CPU: torch's modes, default devices and strides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hmc
import hmc.experts

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def buffer() -> Iterator[hmc.experts.Buffer]:
    """Of one rank with four experts, rows of eight columns."""
    with hmc.init(rank=0, size=1, timeout=60) as comm, hmc.experts.Buffer(comm, 4, 8, 16, topk=2, dtype="float32") as made:
        yield made


def test_the_mode_of_the_first_call_is_not_kept(buffer: hmc.experts.Buffer) -> None:
    """A tensor that was made in inference mode cannot be written outside it, nor can views of it."""
    x, ids = torch.arange(24.0).reshape(3, 8), torch.tensor([[0, 1], [2, 3], [1, -1]])
    for inference in (True, True, False, False):
        with torch.inference_mode(inference):
            x2, handle = buffer.dispatch(x, ids, torch.ones(3, 2), timeout=60)
            results = buffer.results(handle)
            results.copy_(x2)
            y = buffer.combine(results, handle, timeout=60)
        assert torch.equal(y, x * torch.tensor([[2.0], [2.0], [1.0]]))


def test_tensors_beyond_their_storage_are_refused(buffer: hmc.experts.Buffer) -> None:
    def resized(array: Any) -> Any:
        found = array.clone()
        found.untyped_storage().resize_(8)
        return found

    given = {
        "x": torch.arange(24.0).reshape(3, 8),
        "topk_ids": torch.zeros(3, 1, dtype=torch.int64),
        "topk_weights": torch.ones(3, 1),
    }
    for name, array in given.items():
        with pytest.raises(hmc.InvalidArgumentError, match="of its storage of 8 bytes, which was resized"):
            buffer.dispatch(**{**given, name: resized(array)}, timeout=60)
    x2, handle = buffer.dispatch(**given, timeout=60)
    with pytest.raises(hmc.InvalidArgumentError, match="of its storage of 8 bytes, which was resized"):
        buffer.combine(resized(x2), handle, timeout=60)
    assert torch.equal(buffer.combine(x2, handle, timeout=60), given["x"])


def test_strided_arrays(buffer: hmc.experts.Buffer) -> None:
    x = torch.arange(48.0).reshape(3, 16)[:, ::2]
    ids, weights = torch.tensor([[0, 9, 3], [2, 9, 1], [1, 9, 0]])[:, ::2], torch.arange(6.0).reshape(2, 3).T
    assert not any(array.is_contiguous() for array in (x, ids, weights))
    x2, handle = buffer.dispatch(x, ids, weights, timeout=60)
    order = [int(token) for _, token in handle.sources]
    assert torch.equal(x2, x[order])
    spread = torch.zeros(len(order), 16)
    spread[:, ::2] = x2
    y = buffer.combine(spread[:, ::2], handle, timeout=60)
    assert torch.equal(y, x * weights.sum(1, keepdim=True))


def test_a_default_device_of_the_caller(buffer: hmc.experts.Buffer) -> None:
    """HMC makes its tensors where they belong."""
    x, ids, weights = torch.ones(2, 8), torch.tensor([[0], [3]]), torch.ones(2, 1)
    with torch.device("meta"):
        x2, handle = buffer.dispatch(x, ids, weights, timeout=60)
        y = buffer.combine(x2, handle, timeout=60)
    assert torch.equal(y, x)
