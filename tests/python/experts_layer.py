"""A layer of experts whose results are known: for the tests of hmc.experts. Expert e turns x into x * (e + 1) - e."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hmc
from hmc.experts import Buffer, Handle

Array = NDArray[Any]


def routing(seed: Sequence[int], tokens: int, topk: int, experts: int) -> tuple[Array, Array]:
    """Random ids, about one in six of them -1, and small integers as weights."""
    random = np.random.default_rng(list(seed))
    ids = np.argsort(random.random((tokens, experts)), axis=1)[:, :topk].astype(np.int32)
    ids[random.random(ids.shape) < 0.17] = -1
    return ids, random.integers(-4, 5, ids.shape).astype(np.float32)


def rows(seed: Sequence[int], tokens: int, hidden: int) -> Array:
    """Small integers: sums of their products are exact in float32."""
    return np.random.default_rng([*seed, 9]).integers(-30, 31, (tokens, hidden)).astype(np.float32)


def expert(number: int, x: Array) -> Array:
    return x * np.float32(number + 1) - np.float32(number)


def dense(x: Array, ids: Array, weights: Array, lost: Array) -> Array:
    """Without ranks and without Buffers; in float64."""
    y = np.zeros(x.shape, np.float64)
    for token, k in np.ndindex(ids.shape):
        if ids[token, k] >= 0 and not lost[token, k]:
            y[token] += np.float64(weights[token, k]) * expert(int(ids[token, k]), x[token].astype(np.float64))
    return y


def apply(buffer: Buffer, x2: Array, handle: Handle) -> Array:
    """What the experts of this rank make of x2, float32. With once=True: their weighted sum."""
    results = np.zeros(x2.shape, np.float32)
    for local, number in enumerate(buffer.experts_of(buffer.rank)):
        here = handle.rows(local)
        made = expert(number, x2[here])
        if handle.weights.shape[1]:  # with once=True: weighted sums of this rank's experts
            results[here] += made * np.where(handle.experts[here] == local, handle.weights[here], 0).sum(axis=1)[:, None]
        else:
            results[here] = made
    return results


def check_x2(buffer: Buffer, x2: Array, handle: Handle, sent: Callable[[int], tuple[Array, Array]]) -> None:
    """Every row against what its source sent. ``sent``: (x, ids) of a rank."""
    expected = []
    for number in buffer.experts_of(buffer.rank):
        for rank in range(len(buffer.alive)):
            x, ids = sent(rank)
            expected += [(rank, token, x[token]) for token in np.nonzero((ids == number).any(axis=1))[0]]
    assert handle.sources.tolist() == [[rank, token] for rank, token, _ in expected]
    assert len(expected) == len(x2)
    assert all(np.array_equal(row, other) for row, (_, _, other) in zip(x2, expected, strict=True))


def check_round(buffer: Buffer, seed: int, hidden: int, tokens: int, topk: int, experts: int, timeout: float = 20) -> Handle:
    """One dispatch and combine: the exact sum of all pairs that are not lost. A lost pair is of a rank that is not alive."""
    x = rows((seed, buffer.rank), tokens, hidden)
    ids, weights = routing((seed, buffer.rank), tokens, topk, experts)
    x2, handle = buffer.dispatch(x, ids, weights, timeout=timeout)
    y = buffer.combine(apply(buffer, on_host(x2), handle), handle, timeout=timeout)
    check_sum(buffer, y, x, ids, weights, handle)
    return handle


def on_host(array: Any) -> Array:
    """Float32."""
    if isinstance(array, np.ndarray):
        return array
    found = np.empty(array.shape, np.float32)
    if found.size:
        array.memory().copy_to(found)
    return found


def check_sum(buffer: Buffer, y: Array, x: Array, ids: Array, weights: Array, handle: Handle) -> None:
    assert np.array_equal(y, dense(x, ids, weights, handle.lost))
    owner = np.concatenate([np.full(len(buffer.experts_of(rank)), rank) for rank in range(len(buffer.alive))])
    dead = np.append(~np.array(buffer.alive)[owner], False)  # the last: of -1
    assert not (handle.lost & ~dead[ids]).any()


def soon(condition: Callable[[], object]) -> None:
    """Returns when another thread has made a condition true."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refused(kind: type[BaseException], call: Callable[..., object], *arguments: object, **named: object) -> str:
    """The message with which a call is refused."""
    try:
        call(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} succeeded; {kind.__name__} was expected")


class PatientBuffer(Buffer):
    """Its close() waits longer than by default: ranks are stopped, and machines are busy."""

    def close(self, timeout: float | None = 30) -> None:
        super().close(timeout)


def buffer_of(comm: hmc.Communicator, **changes: Any) -> Buffer:
    """Of awkward sizes."""
    sizes: dict[str, Any] = {"experts": 13, "hidden": 33, "tokens": 17, "topk": 5, "dtype": "float32", "timeout": 30}
    return PatientBuffer(comm, **{**sizes, **changes})
