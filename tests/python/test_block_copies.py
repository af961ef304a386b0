"""Memory.copy_blocks_from between every two kinds of memory, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from commands import run_alone
from conftest import read_only
from patterns import pattern
from test_devices import SIMULATED

import hmc


def test_between_every_two_devices() -> None:
    source = f"""
import itertools
devices = {["cpu", *SIMULATED, "cuda:1"]!r}
rng = np.random.default_rng(5)
for here, there in itertools.product(devices, devices):
    for count, size in ((1, 1), (7, 333), (40, 4096), (0, 16), (3, 70_001)):
        gap = size + 5
        data, old = (rng.integers(0, 256, 2 * (count + 1) * gap, np.uint8) for _ in range(2))
        a, b = hmc.Memory(data.nbytes, here), hmc.Memory(old.nbytes, there)
        a.copy_from(data)
        b.copy_from(old)
        at, to = (rng.permutation(2 * count)[:count] * gap + 3 for _ in range(2))
        b.copy_blocks_from(a, at, to, size)
        for x, y in zip(at, to):
            old[y : y + size] = data[x : x + size]
        found = np.empty_like(old)
        b.copy_to(found)
        assert np.array_equal(found, old), (here, there, count, size)
print("equal")
"""
    assert "equal" in run_alone(source)


def test_what_is_refused() -> None:
    a, b = hmc.Memory.from_array(pattern(100, 1)), hmc.Memory(100)
    before = bytes(b.numpy())
    for at, to, size, match in (
        ([0, 1], [0], 5, "2 source offsets and 1 target"),
        ([96], [0], 5, "outside"),
        ([0], [96], 5, "outside"),
        ([0, 101], [0, 5], 1, "outside"),
        ([-1], [0], 5, "negative"),
        ([0.5], [0], 5, "integers"),
        ([2**63], [0], 5, "outside"),
    ):
        with pytest.raises(hmc.InvalidArgumentError, match=match):
            b.copy_blocks_from(a, at, to, size)
    with pytest.raises(hmc.InvalidArgumentError, match="read-only"):
        hmc.Memory.from_array(read_only(100)).copy_blocks_from(b, [0], [0], 5)
    b.copy_blocks_from(a, [500], [700], 0)  # blocks of no bytes lie anywhere
    assert bytes(b.numpy()) == before
    assert np.array_equal(a.numpy(), pattern(100, 1))


def test_addresses() -> None:
    array = pattern(100, 1)
    assert hmc.Memory.from_array(array).address == array.ctypes.data
    assert hmc.Memory.from_array(array)[7:].address == array.ctypes.data + 7
