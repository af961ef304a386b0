"""What hmc.kv refuses, by name: damaged and forged tickets, arguments that cannot be."""

from __future__ import annotations

import contextlib
import gc
import random
import time
import weakref
from typing import Any

import numpy as np
import pytest
from kv_sides import PAIRS

import hmc
import hmc.tensors
from hmc import kv
from hmc.kv._wire import INBOX, LEASE, Description, Ticket


def test_damaged_tickets_are_refused(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    ticket = a.pool.lease("s", [3, 1], 20).ticket
    rng = random.Random(1)
    for _ in range(3000):
        damaged = bytearray(ticket)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        data = bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged) + 1)])])
        for kind in (LEASE, INBOX):
            try:
                decoded = Ticket.decode(data, kind)
            except (hmc.InvalidArgumentError, hmc.ProtocolError):
                continue
            assert decoded.encode() == data
    description = Description(a.layout, [b"x" * 60] * 3).encode()
    for _ in range(3000):
        damaged = bytearray(description)
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(hmc.ProtocolError):
            Description.decode(bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged) + 1)])]))
    decoded = Ticket.decode(ticket, LEASE)
    for change in (
        {"blocks": np.array([3, 12], np.uint32)},
        {"rows": np.array([1, 9999], np.uint32)},
        {"slot": 5000},
        {"tokens": 33},
    ):
        forged = decoded._replace(**change).encode()
        pull = b.pool.pull(to_a, forged, [0, 1, 2], tokens=16)
        with pytest.raises(hmc.InvalidArgumentError):
            pull.wait(20)
    other = decoded._replace(generation=decoded.generation + 1).encode()
    with pytest.raises(hmc.LeaseExpiredError):
        b.pool.pull(to_a, other, [0, 1, 2]).wait(20)
    with pytest.raises(hmc.InvalidArgumentError, match="receive"):
        a.pool.push(to_a, ticket, [0])
    with pytest.raises(TypeError):
        b.pool.pull(to_a, "ticket", [0])  # type: ignore[arg-type]


@pytest.mark.parametrize("blocks", [[], [-1], [12], [2**63], [-(2**70)], np.array([3, -1]), np.array([2**63], np.uint64)], ids=str)
def test_blocks_out_of_range(kv_pair: Any, blocks: Any) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    with pytest.raises(hmc.InvalidArgumentError, match=r"^blocks are 1 to \d+ numbers below 12$"):
        a.pool.lease("s", blocks)


@pytest.mark.parametrize("blocks", [[1, True], [1, 2.0], ["1"], np.array([1.0]), np.array([True]), "12", 3, None], ids=repr)
def test_blocks_of_other_types(kv_pair: Any, blocks: Any) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    with pytest.raises(TypeError if blocks is not None else hmc.InvalidArgumentError, match="blocks"):
        a.pool.lease("s", blocks)


class Listed(list[int]):
    pass


@pytest.mark.parametrize("make", [tuple, Listed, np.array, np.uint16, lambda blocks: list(map(np.int8, blocks))])
def test_blocks_of_any_kind(kv_pair: Any, make: Any) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    assert a.pool.lease("s", make([7, 3, 11]))._ticket.blocks.tolist() == [7, 3, 11]


class Changing(np.ndarray[Any, Any]):
    """As if another thread changed it once it was looked at."""

    def max(self, *given: Any, **more: Any) -> Any:
        found = super().max(*given, **more)
        self[:] = 99
        return found


def test_blocks_are_copied_before_they_are_checked(kv_pair: Any) -> None:
    a, *_ = kv_pair(*PAIRS[0])
    blocks = np.array([7, 3, 11]).view(Changing)
    assert a.pool.lease("s", blocks)._ticket.blocks.tolist() == [7, 3, 11]
    hidden = np.ma.array([7, (1 << 32) + 3], mask=[False, True])  # type: ignore[no-untyped-call]
    with pytest.raises(hmc.InvalidArgumentError, match="blocks"):
        a.pool.lease("s", hidden, digest=False)


def test_arguments_are_refused_by_name(kv_pair: Any) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    with pytest.raises(hmc.OutOfMemoryError, match="of 12 are free"):
        a.pool.allocate("s", 13 * 16)
    with pytest.raises(hmc.InvalidArgumentError, match="no blocks"):
        a.pool.lease("nobody")
    with pytest.raises(hmc.InvalidArgumentError, match="below 12"):
        a.pool.lease("s", [12])
    with pytest.raises(hmc.InvalidArgumentError, match="do not fit"):
        a.pool.lease("s", [1], 17)
    with pytest.raises(hmc.InvalidArgumentError, match="credits"):
        a.pool.push(to_a, b"", [0], credits=0)
    lease = a.pool.lease("s", [1], 16)
    with pytest.raises(hmc.InvalidArgumentError, match="lease of 16"):
        b.pool.pull(to_a, lease.ticket, [1], skip=16)
    with pytest.raises(hmc.InvalidArgumentError, match="arrays"):
        kv.Pool(a.ctx, a.arrays * 2, a.layout)
    with pytest.raises(hmc.InvalidArgumentError, match="bytes"):
        kv.Pool(a.ctx, a.arrays[0][:-1], a.layout)
    small = kv.Pool(a.ctx, a.arrays, a.layout, lease_blocks=2)
    small.lease("s", [1, 2])
    with pytest.raises(hmc.OutOfMemoryError, match="lease_blocks"):
        small.lease("s", [3])
    small.close()
    small.close()
    with pytest.raises(hmc.ClosedError):
        small.lease("s", [3])
    with pytest.raises(hmc.ClosedError):
        small.allocate("t", 1)


def test_a_lease_that_has_ended_is_not_renewed(kv_pair: Any) -> None:
    a, _, _, _ = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [1, 2], seconds=600)
    lease.renew(900)
    lease.release()
    with pytest.raises(hmc.LeaseExpiredError, match="released"):
        lease.renew()


@pytest.mark.parametrize("wrong", ["no", 0, None])
def test_flags_are_bools(kv_pair: Any, wrong: Any) -> None:
    a, b, to_a, _ = kv_pair(*PAIRS[0])
    with pytest.raises(TypeError, match="digest must be a bool, not a"):
        a.pool.lease("s", [1], digest=wrong)
    ticket = a.pool.lease("s", [1]).ticket
    with pytest.raises(TypeError, match="verify must be a bool, not a"):
        b.pool.pull(to_a, ticket, [1], verify=wrong)
    with pytest.raises(TypeError, match="verify must be a bool, not a"):
        b.pool.receive(to_a, [1], verify=wrong)
    assert a.pool.counters()["leases_held"] == 1
    b.pool.pull(to_a, ticket, [1], verify=np.bool_(True)).wait(20)


def test_a_pool_that_is_refused_keeps_no_cache() -> None:
    class Array(np.ndarray):
        """One that says when it is freed."""

    text = "L=2 | B=12 H=4 N=16 (kv D=32) bf16"
    nbytes = hmc.layout.Layout(text).buffer_bytes
    with hmc.Context() as ctx:
        closed = ctx.buffer(nbytes)
        closed.close()
        array = np.zeros(nbytes, np.uint8).view(Array)
        kept = weakref.ref(array)
        gc.disable()
        try:
            with pytest.raises(hmc.ClosedError):
                kv.Pool(ctx, [array, closed], text)
            del array
            until = time.monotonic() + 60
            while kept() is not None:
                assert time.monotonic() < until
                time.sleep(0.001)
        finally:
            gc.enable()


def test_a_tensor_in_another_order_is_refused() -> None:
    """Its memory has no gaps: taken as it lies, tokens and heads would be exchanged."""
    with hmc.Context() as ctx:
        tensor = hmc.tensors.register(ctx, np.asfortranarray(np.zeros((2, 4, 8, 2, 16), np.uint16)))
        with pytest.raises(hmc.InvalidArgumentError, match="pass one in C order"):
            kv.Pool(ctx, tensor, "L=2 B=4 N=8 H=2 D=16 bf16")
