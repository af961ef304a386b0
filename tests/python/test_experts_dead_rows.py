"""What a dispatch gives for the rows of a rank that died: zeroes, in the rows and in their scales."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import hmc
from hmc.experts._calls import Dispatch
from hmc.experts._memory import Area


def test_rows_and_scales_of_a_dead_rank_are_zero() -> None:
    areas = [Area(hmc.Memory(4 * row_bytes), 4, row_bytes) for row_bytes in (256, 8)]
    received = SimpleNamespace(rows_of=lambda _: np.array([0, 2]), lose=lambda _: None)
    call: Any = SimpleNamespace(handle=SimpleNamespace(_received=received), _areas=areas, _x2=["x2", "scales"])
    call._steps = SimpleNamespace(copies=lambda: ([], []))
    call.fabric = SimpleNamespace(shape=SimpleNamespace(ranks=2, scaled=True))
    for area in areas:
        area.bytes()[:] = 7
    assert Dispatch.finish(call, [0], [1])[0] == ("x2", "scales")
    for area in areas:
        assert [set(row) for row in area.bytes().tolist()] == [{0}, {7}, {0}, {7}]
