"""Transfers beside a device that has little memory left: they go on with less, or say what is lacking."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from weights_pair import Pair

import hmc
import hmc.testing
from hmc import weights
from hmc._deadline import Deadline
from hmc._threaded import Cancel
from hmc.kv import _images
from hmc.layout import Runs
from hmc.weights._limits import Limits
from hmc.weights._stages import LEAST_STAGE, Stages

MEMORY = 64 << 20

PRELUDE = """
import contextlib, time
from hmc import tensors

PAGE = 2 << 20  # of NVIDIA's devices

def free(device="cuda:0"):
    \"\"\"Bytes that are left of a device, in whole pages.\"\"\"
    taken = []
    with contextlib.suppress(hmc.OutOfMemoryError):
        while True:
            taken.append(hmc.Memory(PAGE, device))
    return len(taken) * PAGE

def filled(left, device="cuda:0"):
    \"\"\"Takes memory until so many bytes of a device are left.\"\"\"
    taken, until = [], time.monotonic() + 20
    while len(taken) * PAGE < most - left:  # threads of a transfer that has ended may refer to its memory for a moment
        assert time.monotonic() < until, "the memory of an earlier transfer is not free"
        try:
            taken.append(hmc.Memory(PAGE, device))
        except hmc.OutOfMemoryError:
            time.sleep(0.001)
    return taken
"""

WEIGHTS = """
from hmc import weights
import itertools
from hmc.weights import _cells, _pull, _stages
from weights_pair import Pair, cast, numbers

rows, columns = 2048, 1001
values = numbers((rows, columns), "float32")  # 8 MB
row = numbers((125, 8000), "float32")  # 4 MB, as one row, which is cut at its chunks
_cells.DEVICE_TASK_BYTES = 16 << 20
sizes = []
real = _stages.Stages.take

def take(self, *given):
    stage = real(self, *given)
    sizes.append(0 if stage is None else stage.nbytes)
    return stage

_stages.Stages.take = take
with contextlib.ExitStack() as end:
    pair = Pair(end)
    named = {"row": row, "y0": values, "y1": values, "y2": values}
    published = {**named, "row": row.reshape(1, -1), "x": values}
    source = pair.publish({name: one.view(np.float32) for name, one in published.items()})
    hold = hmc.Memory(56 << 20, "cuda:0")
    try:
        pair.plan(source, {name: np.empty((rows, columns), np.float32) for name in ("x", "y0")}, shadow="cuda:0")
    except hmc.OutOfMemoryError as error:
        print(error)
    del hold
    memory = {name: hmc.Memory(one.nbytes // 2, "cuda:0") for name, one in named.items()}
    shapes = {name: (rows, columns) if name != "row" else (1, row.size) for name in named}
    target = {name: weights.part(tensors.view(one, "bfloat16", shapes[name])) for name, one in memory.items()}
    memory["x"] = hmc.Memory(rows * 500 * 4, "cuda:0")
    target["x"] = weights.part(tensors.view(memory["x"], "float32", (rows, 500)), (rows, columns), (0, 3))
    wanted = {name: cast(one, "float32", "bfloat16").tobytes() for name, one in named.items()}
    wanted["x"] = np.ascontiguousarray(values[:, 3:503]).tobytes()
    plan = pair.plan(source, target, shadow="cuda:0")
    most = free()
    for verify, left, two in itertools.product((True, False), (16 << 20, 6 << 20, PAGE), (True, False)):
        _pull._takes_two = lambda *_: two
        sizes.clear()
        taken = filled(left)
        plan.pull(verify=verify, timeout=50).wait()
        assert 0 < max(sizes) < left + PAGE, (left, sizes)
        del taken
        plan.commit()
        for name, one in memory.items():
            host = np.empty(one.nbytes, np.uint8)
            one.copy_to(host)
            assert host.tobytes() == wanted[name], name
            one.fill(0)
    taken = filled(0)
    for _ in range(2):
        try:
            plan.pull(timeout=50).wait()
        except hmc.OutOfMemoryError as error:
            print(error)
    del taken
    filled(0)  # nothing is kept
print("pulled")
"""


@pytest.mark.parametrize("kernels", [True, False])
def test_weights_go_on_with_smaller_stages(run_script: Callable[..., str], kernels: bool) -> None:
    vendor = "cuda" if kernels else "musa"
    source = (PRELUDE + WEIGHTS).replace("cuda:0", f"{vendor}:0")
    said = run_script(source, {**hmc.testing.environment(vendor), "HMC_SIM_MEMORY": str(MEMORY)})
    assert "pulled" in said
    assert said.count(f"the pull has no room for a stage on {vendor}:0: ") == 2
    assert "2097152 suffice" in said
    assert f"which {vendor}:0 does not have free: free memory of it, or plan() with another shadow=" in said


PAGES = """
from hmc.kv import _moves
from kv_sides import PLAIN, TURNED, connected, expected, same

_moves.CHUNK = 1 << 20
prefill, decode = "L=3 B=160 H=4 N=16 (kv D=32) bf16", "L=3 B=80 kv H=4 D=32 N=32 bf16"  # 4 MB each, short runs
for layouts in ((prefill, decode), (decode, prefill)):
    with connected(*layouts, ("cuda:0", "cuda:0")) as (a, b, to_a, to_b):
        mine, theirs = (list(range(1, 1 + 1000 // side.layout.block + 1)) for side in (a, b))
        for left in (2 * PAGE, PAGE, 0):
            wanted = expected(a, mine, b, theirs, 1000)
            most = free()
            taken = filled(left)
            lease = a.pool.lease("s", mine, 1000)
            b.pool.pull(to_a, lease.ticket, theirs).wait(50)
            inbox = b.pool.receive(to_a, theirs, 1000)
            with a.pool.push(to_b, inbox.ticket, mine) as push:
                for layer in range(3):
                    push.ready(layer, timeout=20)
            inbox.wait(20)
            del taken
            same(b, wanted)
            for side in (a, b):
                side.pool.cache._again = 0.0
                side.pool.scratch._free_spare("cuda:0")
                side.pool.cache._images.close()
            for array in b.arrays:
                array.memory.fill(0)
print("pulled")
"""


@pytest.mark.parametrize("vendor", ["cuda", "musa"])
def test_pages_go_on_without_room_on_the_device(run_script: Callable[..., str], vendor: str) -> None:
    source = (PRELUDE + PAGES).replace("cuda:0", f"{vendor}:0")
    assert "pulled" in run_script(source, {**hmc.testing.environment(vendor), "HMC_SIM_MEMORY": str(MEMORY)})


class Room:
    """A Context whose device has so many bytes. Those of closed buffers are not free: others may still refer to them."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes
        self.closed = 0

    def buffer(self, nbytes: int, device: str) -> Any:
        if nbytes > self.left:
            raise hmc.OutOfMemoryError(f"{device} is full")
        self.left -= nbytes
        return SimpleNamespace(nbytes=nbytes, close=lambda timeout: self.close(nbytes))

    def close(self, nbytes: int) -> None:
        self.closed += nbytes


MIB = 1 << 20


def stages(nbytes: int) -> tuple[Any, Room, Limits]:
    room: Any = Room(nbytes)
    return Stages(room, "cuda:0"), room, Limits(Cancel(), Deadline(20))


def test_a_stage_that_is_spare_serves_where_a_larger_one_has_no_room() -> None:
    made, room, limits = stages(10 * MIB)
    made.give(made.take(3 * MIB, limits, True))
    assert made.take(8 * MIB, limits, True).nbytes == 3 * MIB
    assert room.closed == 0
    made, room, limits = stages(12 * MIB)
    made.give(made.take(3 * MIB, limits, True))
    assert made.take(8 * MIB, limits, True).nbytes == 8 * MIB
    assert room.closed == 3 * MIB


def test_a_worker_waits_for_the_stage_of_another() -> None:
    made, _, limits = stages(3 * MIB)
    first = made.take(8 * MIB, limits, True)
    assert first.nbytes == 2 * MIB
    assert made.take(8 * MIB, limits, False) is None
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(made.take(8 * MIB, limits, True)))
    waiting.start()
    made.give(first)
    waiting.join(20)
    assert found == [first]
    assert made.take(8 * MIB, limits, False) is None
    limits.failed.set()
    with pytest.raises(hmc.HmcCancelledError):
        made.take(8 * MIB, limits, True)


def test_no_room_for_the_least_stage_is_an_error_that_says_how_much() -> None:
    made, room, limits = stages(3 * MIB)
    first = made.take(MIB, limits, True)
    assert first.nbytes == MIB
    made.discard(first)  # still written, by a source that is stopped
    assert made.take(2 * MIB, limits, True).nbytes == 2 * MIB
    made, room, limits = stages(MIB)
    with pytest.raises(hmc.OutOfMemoryError, match="8388608 bytes were wanted, 2097152 suffice: free memory of cuda:0, or plan"):
        made.take(8 * MIB, limits, True)
    made.give(made.take(MIB, limits, True))
    with pytest.raises(hmc.OutOfMemoryError):  # the spare one is too small, and freed
        made.take(8 * MIB, limits, True)
    room.left = 2 * MIB
    assert made.take(8 * MIB, limits, True).nbytes == 2 * MIB


def test_a_row_that_fits_into_a_stage_but_for_whole_chunks_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Stages._made

    def small(self: Stages, nbytes: int) -> Any:
        if nbytes > LEAST_STAGE:
            raise hmc.OutOfMemoryError("no room")
        return made(self, nbytes)

    monkeypatch.setattr(Stages, "_made", small)
    array = np.arange(600000, dtype=np.float32)
    with contextlib.ExitStack() as end:
        pair = Pair(end)
        source = pair.publish({"x": array})
        for first, count in ((5000, 520000), (8191, 524288), (1, 599999)):
            target = np.zeros(count, np.float32)
            pair.fill([source], {"x": weights.part(target, array.shape, (first,))})
            assert (target == array[first : first + count]).all()


class Given:
    """Images of one size, or none."""

    def __init__(self, size: int) -> None:
        self.size = size

    @contextlib.contextmanager
    def taken(self, nbytes: int, least: int) -> Iterator[hmc.Memory]:
        if self.size == 0:
            raise hmc.OutOfMemoryError("the device is full")
        yield hmc.Memory(self.size)


@pytest.mark.parametrize("size", [4096, 1000, 64, 31, 3, 0])
def test_runs_pass_images_of_any_size(size: int) -> None:
    """Every byte of a run arrives, and no other byte of the caches changes."""
    rng = np.random.default_rng(0)
    caches = [hmc.Memory.from_array(rng.integers(0, 256, 5000, np.uint8)) for _ in range(2)]
    packed = [np.arange(0, 3000, 30, dtype=np.uint64), np.arange(3000, 3993, 7, dtype=np.uint64)]
    there = [rng.permutation(100).astype(np.uint64) * 50, rng.permutation(142).astype(np.uint64) * 33]
    images: Any = Given(size)
    copy = hmc.Memory(4000)
    _images.gather(images, [Runs(20, 0, there[0], 0, packed[0]), Runs(7, 1, there[1], 0, packed[1])], caches, copy)
    back = [hmc.Memory(5000), hmc.Memory(5000)]
    _images.scatter(images, [Runs(20, 0, packed[0], 0, there[0]), Runs(7, 0, packed[1], 1, there[1])], back, copy)
    for cache, found, offsets, nbytes in zip(caches, back, there, (20, 7), strict=True):
        wanted = np.zeros(5000, np.uint8)
        for first in offsets.astype(int):
            wanted[first : first + nbytes] = cache.numpy()[first : first + nbytes]
        assert np.array_equal(found.numpy(), wanted)
