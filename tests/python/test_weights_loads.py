"""Pulls of hmc.weights whose sources are memory of HMC on this host: cells are copied and digested in one pass."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from weights_pair import Pair, random

import hmc
from hmc import weights
from hmc.weights import _cells, _pull
from hmc.weights._digest import Grid


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each pass."""
    found: list[int] = []
    real = Grid.copied

    def copied(self: Grid, source: Any, target: Any, first_row: int, rows: int, first: int, last: int, digest: bool) -> int:
        found.append(rows * min(self.columns, (last - first) * self.chunk) * self.itemsize)
        return real(self, source, target, first_row, rows, first, last, digest)

    monkeypatch.setattr(Grid, "copied", copied)
    return found


def mapped(pair: Pair, array: Any) -> Any:
    """A copy in memory of HMC."""
    copy = pair.source_ctx.buffer(max(1, array.nbytes)).numpy()[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


SHAPES = [
    ((3000, 1024), "<u2"),
    ((7, 65, 515), "<u2"),
    ((1001,), "u1"),
    ((5, 4097), "u1"),
    ((130, 2051), "<f4"),
    ((1, 70000), "<f8"),
]


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
@pytest.mark.parametrize("task", [1 << 16, 1 << 24])
def test_parts_of_every_shape_are_loaded(
    pair: Pair, loads: list[int], monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str, task: int
) -> None:
    monkeypatch.setattr(_cells, "TASK_BYTES", task)
    array = random(shape, dtype)
    axis = int(np.argmax(shape))
    cut = shape[axis] // 3
    pieces = []
    for first, last in ((0, cut), (cut, shape[axis])):
        slices = tuple(slice(first, last) if i == axis else slice(None) for i in range(len(shape)))
        at = [first if i == axis else 0 for i in range(len(shape))]
        pieces.append(pair.publish({"x": weights.part(mapped(pair, array[slices]), shape, at)}, name=f"x{first}"))
    target = np.zeros(shape, dtype)
    pair.fill(pieces, {"x": target})
    assert target.tobytes() == array.tobytes()
    rows = tuple(slice(extent // 4, extent - 1) if extent > 3 else slice(None) for extent in shape[:1])
    part = np.zeros(array[rows].shape, dtype)
    where = [rows[0].start or 0, *([0] * (len(shape) - 1))]
    pair.fill(pieces, {"x": weights.part(part, shape, where)})
    assert part.tobytes() == array[rows].tobytes()
    assert loads


@pytest.mark.parametrize("columns", [(0, 4096), (1024, 2048), (5, 3001)])
def test_without_digests_whole_chunks_are_loaded(pair: Pair, loads: list[int], columns: tuple[int, int]) -> None:
    array = random((64, 4096), "<u2")
    cut = array[:, columns[0] : columns[1]]
    target = np.zeros(cut.shape, "<u2")
    source = pair.publish({"x": mapped(pair, array)})
    pair.fill(source, {"x": weights.part(target, array.shape, [0, columns[0]])}, verify=False)
    assert target.tobytes() == cut.tobytes()
    assert sum(loads) == (cut.nbytes if columns[0] % 1024 == 0 else 0)


@pytest.mark.parametrize("byte", [0, 77, 4095, 8_388_607])
def test_a_changed_byte_is_found(pair: Pair, loads: list[int], byte: int) -> None:
    array = mapped(pair, random((1024, 4096), "<u2"))
    plan = pair.plan(pair.publish({"x": array}), {"x": np.zeros((1024, 4096), "<u2")})
    plan.pull(timeout=20).wait()
    array.reshape(-1).view(np.uint8)[byte] ^= 0x10
    with pytest.raises(hmc.CorruptError, match="tensor x"):
        plan.pull(timeout=20).wait()
    assert len(loads) > 1


def test_the_digests_of_a_pull_that_failed_are_not_those_of_the_next(
    pair: Pair, loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    array = mapped(pair, random((1024, 4096), "<u2"))
    plan = pair.plan(pair.publish({"x": array}), {"x": np.zeros((1024, 4096), "<u2")})

    def fails(*_: Any) -> None:
        raise hmc.EpochChangedError("as a source that begins an update")

    with monkeypatch.context() as patch:
        patch.setattr(_pull.Worker, "_same_epoch", lambda *_: fails() if loads else None)
        with pytest.raises(hmc.EpochChangedError):
            plan.pull(timeout=20).wait()
    array[7, 7] ^= 1
    for move in plan._moves.values():
        move._loads = False  # by the transport
    with pytest.raises(hmc.CorruptError):
        plan.pull(timeout=20).wait()


def test_an_update_amid_a_pull_is_found(pair: Pair, loads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cells, "TASK_BYTES", 1 << 16)
    array = mapped(pair, random((256, 1024), "<u2"))
    published = pair.end.enter_context(weights.publish(pair.source_ctx, {"x": array}, epoch=1))
    plan = pair.plan(weights.lookup(pair.ctx, pair.peer, timeout=20), {"x": np.zeros((256, 1024), "<u2")})
    real, first = Grid.copied, threading.Lock()

    def late(*given: Any) -> int:
        if len(loads) >= 3 and first.acquire(blocking=False):  # of two workers
            with published.update(2):
                array[:] = random((256, 1024), "<u2", 9)
        return real(*given)

    monkeypatch.setattr(Grid, "copied", late)
    with pytest.raises(hmc.EpochChangedError):
        plan.pull(timeout=20).wait()
    plan.pull(timeout=20).wait()
    assert plan.commit() == 2
