"""A short soak over every transport of one host; `make soak SECONDS=600` is the long one."""

from __future__ import annotations

import random

import pytest
from soak import ENVIRONMENTS, soak
from soak_plan import Plan

KNOWN = ""  # kinds of operations whose promises are known to be broken, by commas


@pytest.mark.parametrize("transport", ENVIRONMENTS)
def test_soak(transport: str) -> None:
    # A busy machine may take seconds more than the promises say.
    assert soak(8, random.randrange(1 << 31), [transport], slack=10.0, without=KNOWN) == []


def test_a_seed_names_one_plan() -> None:
    first, again, other = (Plan(seed, 3, "shm") for seed in (11, 11, 12))
    assert first.batches == again.batches
    assert first.batches != other.batches
    kinds = {op.kind for seed in range(40) for batch in Plan(seed, 0, "tcp").batches for op in batch.ops}
    assert kinds == {"put", "blocks", "get", "send", "notify", "fenced", "cancel"}
    assert {batch.event for seed in range(40) for batch in Plan(seed, 0, "tcp").batches} == {"none", "stop", "kill", "close"}
