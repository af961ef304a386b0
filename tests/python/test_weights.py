"""hmc.weights in one process: regions, casts, fused tensors, blocks, commits, closing."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from weights_pair import CASTS, Pair, cast, numbers, random

import hmc
from hmc import weights
from hmc.weights import _cells
from hmc.weights._digest import Grid


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


def cuts(extent: int, pieces: int, rng: np.random.Generator) -> list[int]:
    return [0, *sorted(rng.integers(0, extent + 1, pieces - 1).tolist()), extent]


def test_rows_an_odd_number_of_bytes_apart(pair: Pair) -> None:
    """A shard with rows of an even number of bytes, read into a target with rows of an odd number."""
    array = random((8, 2049), np.uint8)
    cut = [np.ascontiguousarray(array[:, :1024]), np.ascontiguousarray(array[:, 1024:])]
    source = pair.publish({"x": [weights.part(cut[0], (8, 2049)), weights.part(cut[1], (8, 2049), (0, 1024))]})
    target = np.zeros_like(array)
    pair.fill(source, {"x": target})
    assert np.array_equal(target, array)


@pytest.mark.parametrize("seed", range(12))
def test_any_boxes(pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random axes, extents, element sizes and cuts on every axis of both sides, also shards without elements."""
    monkeypatch.setattr(_cells, "TASK_BYTES", 1 << int(np.random.default_rng(seed).integers(10, 18)))
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 5))
    shape = tuple(int(n) for n in rng.integers(1, (4000, 300, 40, 14)[ndim - 1], ndim))
    if ndim > 1 and seed % 2:
        shape = (*shape[:-1], int(rng.integers(500, 1500)))
    whole = random(shape, ["u1", "u2", "u4", "u8"][seed % 4], seed)

    def parts(pieces: int, fill: bool) -> list[weights.Part]:
        found = []
        for box in itertools.product(*(list(itertools.pairwise(cuts(extent, pieces, rng))) for extent in shape)):
            own = whole[tuple(slice(a, b) for a, b in box)]
            found.append(weights.part(own.copy() if fill else np.zeros_like(own), shape, [a for a, _ in box]))
        return found

    sources = [pair.publish({"x": parts(1 + seed % 3, True)}, f"replica {number}") for number in range(1 + seed % 2)]
    for verify in (True, False):
        target = parts(1 + (seed + 1) % 3, False)
        pair.fill(sources, {"x": target}, verify=verify)
        for one in target:
            assert np.array_equal(one.array, whole[tuple(slice(a, a + e) for a, e in zip(one.at, one.extents, strict=True))])


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("extents", [(1,), (1023,), (5000,), (3, 1), (7, 255), (5, 2050), (2, 3, 1025), (70000, 3)])
def test_every_changed_byte_changes_the_digest(extents: tuple[int, ...], itemsize: int) -> None:
    grid = Grid(extents, itemsize)
    data = random(extents, f"u{itemsize}").reshape(-1).view(np.uint8).copy()
    stride = grid.columns * itemsize
    table = grid.table(data)
    found = grid.digest(data, stride, 0, grid.rows, 0, grid.chunks)
    assert found == int(table.sum(dtype=np.uint64))
    for byte in np.random.default_rng(1).integers(0, len(data), 20):
        data[byte] ^= 1 << int(byte % 8)
        assert grid.digest(data, stride, 0, grid.rows, 0, grid.chunks) != found
        data[byte] ^= 1 << int(byte % 8)


@pytest.mark.parametrize(("source", "target"), [pair for pair in itertools.product(CASTS, CASTS) if pair[0] != pair[1]])
def test_casts(pair: Pair, source: str, target: str) -> None:
    words = numbers((37, 5001), source)
    published = pair.publish({"x": weights.part(words, dtype=source)})
    expected = cast(words, source, target)
    made = np.zeros((37, 2500), expected.dtype)
    pair.fill(published, {"x": weights.part(made, words.shape, (0, 1001), target)})
    assert np.array_equal(made, expected[:, 1001:3501])


def test_casts_are_those_of_ml_dtypes(pair: Pair) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    trained = np.random.default_rng(0).normal(0, 20, (64, 777)).astype(ml_dtypes.bfloat16)
    source = pair.publish({"x": trained})
    wide, narrow = np.zeros((64, 777), np.float32), np.zeros((64, 777), ml_dtypes.float8_e4m3fn)
    pair.fill(source, {"x": wide})
    assert wide.tobytes() == trained.astype(np.float32).tobytes()
    pair.fill(source, {"x": narrow})
    assert narrow.tobytes() == trained.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).tobytes()


def test_fused_tensors(pair: Pair) -> None:
    """A trainer's q, k, v and gate, up become an engine's fused ones, split over two ranks; and back."""
    q, k, v = random((64, 96), np.float32, 1), random((16, 96), np.float32, 2), random((16, 96), np.float32, 3)
    gate, up = random((130, 96), np.float16, 4), random((130, 96), np.float16, 5)
    source = pair.publish({"q": q, "k": k, "v": v, "gate": gate, "up": up})
    fused = []
    for rank in range(2):
        qkv, gate_up = np.zeros((48, 96), np.float32), np.zeros((130, 96), np.float16)
        target = weights.fused(qkv, {"q": 64, "k": 16, "v": 16}, rank=rank, size=2)
        target |= weights.fused(gate_up, {"gate": 130, "up": 130}, rank=rank, size=2)
        pair.fill(source, target)
        wanted = [one[len(one) // 2 * rank : len(one) // 2 * (rank + 1)] for one in (q, k, v)]
        assert qkv.tobytes() == np.concatenate(wanted).tobytes()
        assert gate_up.tobytes() == np.concatenate([one[65 * rank : 65 * (rank + 1)] for one in (gate, up)]).tobytes()
        fused.append(pair.publish(target, f"rank {rank}"))
    back = {name: np.zeros_like(one) for name, one in {"q": q, "k": k, "v": v, "gate": gate, "up": up}.items()}
    pair.fill(fused, back)
    assert all(back[name].tobytes() == one.tobytes() for name, one in {"q": q, "k": k, "v": v, "gate": gate, "up": up}.items())


def test_a_target_may_have_gaps_and_a_source_may_not(pair: Pair) -> None:
    whole = random((20, 33), np.uint16)
    source = pair.publish({"x": whole})
    holder = np.zeros((40, 70), np.uint16)
    pair.fill(source, {"x": holder[::2, 1:67:2]})
    assert np.array_equal(holder[::2, 1:67:2], whole)
    assert int((holder != 0).sum()) == int((whole != 0).sum())
    turned = np.zeros((33, 20), np.uint16)
    pair.fill(source, {"x": turned.T})
    assert np.array_equal(turned.T, whole)
    for array in (holder[::2, 1:67:2], turned.T, whole[:, :5]):
        with pytest.raises(hmc.InvalidArgumentError, match=r"tensor x .*contiguous"):
            weights.publish(pair.source_ctx, {"x": array}, name="other")
    weights.publish(pair.source_ctx, {"x": whole}, name="other").close()  # nothing of a refused one is left


def test_a_publication_of_this_process(pair: Pair) -> None:
    whole = random((20, 33), np.uint16)
    target = np.zeros((10, 33), np.uint16)
    with (
        weights.publish(pair.ctx, {"x": whole}, epoch=4) as source,
        weights.plan(source, {"x": weights.shard(target, 0, 1, 2)}) as plan,
    ):
        plan.pull().wait(20)
        assert plan.commit() == 4
    assert np.array_equal(target, whole[10:])


def test_commit_is_once_per_pull(pair: Pair) -> None:
    array, target = random((20, 33), np.uint16), np.zeros((20, 33), np.uint16)
    source = weights.publish(pair.source_ctx, {"x": array}, epoch=1)
    plan = pair.plan(weights.lookup(pair.ctx, pair.peer, timeout=20), {"x": target})
    assert plan.epoch is None
    with pytest.raises(hmc.InvalidArgumentError, match="without a pull"):
        plan.commit()
    plan.pull().wait(20)
    assert not target.any()
    assert plan.commit() == plan.epoch == 1
    with pytest.raises(hmc.InvalidArgumentError, match="committed before"):
        plan.commit()
    with source.update(2):
        array[:] = random(array.shape, np.uint16, 9)
    pulls = [plan.pull()]
    with pytest.raises(hmc.InvalidArgumentError, match=r"another pull|under way"):
        while not pulls[-1].done:
            pulls.append(plan.pull())  # where the last one has ended since
        raise hmc.InvalidArgumentError("under way")  # it was faster
    pulls[-1].wait(20)
    assert plan.commit() == 2
    assert np.array_equal(target, array)
    source.close()


def test_what_was_pulled_can_be_read_without_a_commit(pair: Pair) -> None:
    arrays = {"b": random((5, 7), np.uint16), "none": np.zeros((0, 3), np.float32), "a": random((3, 1001), np.uint8)}
    target = {name: np.zeros_like(array) for name, array in arrays.items()}
    plan = pair.plan(pair.publish(arrays, epoch=6), target)
    with pytest.raises(hmc.InvalidArgumentError, match="without a pull"):
        plan.pulled()
    plan.pull().wait(20)
    epoch, found = plan.pulled()
    assert epoch == 6
    assert plan.epoch is None
    assert [name for name, _ in found] == list(arrays)
    for name, tensor in found:
        assert (tensor.dtype, tensor.shape) == (arrays[name].dtype.name, arrays[name].shape)
        assert np.array_equal(tensor.numpy(), arrays[name])
    assert not any(one.any() for one in target.values())
    assert plan.commit() == 6
    assert all(np.array_equal(target[name], array) for name, array in arrays.items())
    with pytest.raises(hmc.InvalidArgumentError, match="committed before"):
        plan.pulled()
    plan.close()
    with pytest.raises(hmc.ClosedError):
        plan.pulled()


def test_an_update_that_raises_leaves_no_epoch(pair: Pair) -> None:
    array, target = random((20, 33), np.uint16), np.zeros((20, 33), np.uint16)
    with weights.publish(pair.source_ctx, {"x": array}, epoch=1) as source:
        plan = pair.plan(weights.lookup(pair.ctx, pair.peer, timeout=20), {"x": target})
        with pytest.raises(ZeroDivisionError), source.update(2):
            with pytest.raises(hmc.InvalidArgumentError, match="another update"), source.update(3):
                pass
            raise ZeroDivisionError
        with pytest.raises(hmc.HmcTimeoutError):
            plan.pull(timeout=0.1).wait()
        with source.update(3):
            array[0, 0] += 1
        plan.pull(timeout=20).wait()
        assert plan.commit() == 3
    with pytest.raises(hmc.ClosedError), source.update(4):
        pass


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
def test_closing_in_any_order(order: tuple[int, ...]) -> None:
    source_ctx, ctx = hmc.Context(), hmc.Context()
    source = weights.publish(source_ctx, {"x": random((200, 330), np.uint16)})
    peer = ctx.connect(source_ctx.addresses[0], timeout=20)
    plan = weights.plan(weights.lookup(ctx, peer, timeout=20), {"x": np.zeros((200, 330), np.uint16)})
    plan.pull()
    ends = [source_ctx.close, ctx.close, source.close, plan.close]
    for number in order:
        ends[number]()
    for end in ends:
        end()
    with pytest.raises(hmc.ClosedError):
        plan.pull()
    with pytest.raises(hmc.ClosedError):
        plan.commit()


def test_a_target_without_elements(pair: Pair) -> None:
    source = pair.publish({"x": np.zeros((0, 4), np.float32), "y": np.ones(3)})
    for target in ({}, {"x": np.zeros((0, 4), np.float32)}, {"y": weights.part(np.zeros(0), (3,), (3,))}):
        plan = pair.fill(source, target)
        assert plan.epoch == 0
        assert plan.nbytes == 0


def test_an_epoch_that_no_source_has_of_a_target_without_elements(pair: Pair) -> None:
    plan = pair.plan(pair.publish({"x": np.zeros((0, 3))}, epoch=1), {"x": np.zeros((0, 3))})
    with pytest.raises(hmc.HmcTimeoutError, match="epoch 5"):
        plan.pull(epoch=5, timeout=0.1).wait(20)
    plan.pull(epoch=1, timeout=20).wait()
    assert plan.commit() == 1


def test_a_thousand_plans_leave_no_memory(pair: Pair) -> None:
    source = pair.publish({"x": random((64, 64), np.uint16)})
    target = np.zeros((64, 64), np.uint16)

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    for number in range(1000):
        if number == 50:
            before = descriptors()
        with weights.plan(source, {"x": target}) as plan:
            pull = plan.pull()
            if number % 2:
                pull.cancel()
            else:
                pull.wait(20)
    assert descriptors() <= before + 2


def test_a_closed_plan_keeps_no_memory(pair: Pair) -> None:
    source = pair.publish({"x": random((64, 64), np.float32), "y": random((64, 64), np.uint16)})
    with weights.plan(source, {"x": np.zeros((64, 64), np.float32), "y": np.zeros((64, 64), np.uint16)}) as plan:
        plan.pull().wait(20)
        shadow = weakref.ref(plan.shadow)
        plan.commit()
    assert shadow() is None
    assert (plan.epoch, plan.nbytes) == (0, 64 * 64 * 6)
    for call in (plan.pull, plan.commit, plan.pulled):
        with pytest.raises(hmc.ClosedError, match="plan is closed"):
            call()
    plan.close()


def quantise(values: Any, block: tuple[int, int]) -> tuple[Any, Any]:
    """Reference: (float8_e4m3fn as bytes, scales)."""
    rows, columns = values.shape
    made = np.zeros(values.shape, np.uint8)
    scales = np.zeros((-(-rows // block[0]), -(-columns // block[1])), np.float32)
    for i, j in np.ndindex(*scales.shape):
        cut = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
        largest = np.abs(values[cut]).max()
        scales[i, j] = largest / np.float32(448) if largest else 1
        divided = np.ascontiguousarray(values[cut] / scales[i, j])
        made[cut] = cast(divided.view(np.uint32), "float32", "float8_e4m3fn")
        if importlib.util.find_spec("ml_dtypes"):
            import ml_dtypes

            assert divided.astype(ml_dtypes.float8_e4m3fn).tobytes() == made[cut].tobytes()
    return made, scales


@pytest.mark.parametrize(
    ("rows", "columns", "block"),
    [(256, 384, (128, 128)), (200, 333, (128, 128)), (65, 70, (1, 32)), (3, 5, (4, 4)), (6, 7, (1, 1 << 62))],
)
def test_quantised_in_blocks(pair: Pair, rows: int, columns: int, block: tuple[int, int]) -> None:
    drawn = np.random.default_rng(0).normal(0, 0.02, (rows, columns)).astype(np.float32)
    drawn[: block[0], : block[1]] = 0
    trained = cast(drawn.view(np.uint32), "float32", "bfloat16")
    wanted, factors = quantise(cast(trained, "bfloat16", "float32").view(np.float32), block)
    cut = rows // 3
    sources = [
        pair.publish({"x": weights.part(trained[:cut].copy(), trained.shape, dtype="bfloat16")}, "upper"),
        pair.publish({"x": weights.part(trained[cut:].copy(), trained.shape, (cut, 0), "bfloat16")}, "lower"),
    ]
    made, scales = np.zeros_like(wanted), np.zeros_like(factors)
    plan = pair.plan(sources, {"x": weights.quantised(made, scales, block=block, dtype="float8_e4m3fn")})
    plan.pull(timeout=20).wait()
    assert not made.any()
    assert not scales.any()
    plan.commit()
    assert made.tobytes() == wanted.tobytes()
    assert scales.tobytes() == factors.tobytes()
    first = block[0] * (rows // block[0] // 2)  # a rank that holds the lower rows
    part, part_scales = np.zeros_like(wanted[first:]), np.zeros_like(factors[first // block[0] :])
    lower = weights.quantised(part, part_scales, trained.shape, (first, 0), block, "float8_e4m3fn")
    pair.fill(sources, {"x": lower}, "cpu:0")  # as torch writes its device
    assert part.tobytes() == wanted[first:].tobytes()
    assert part_scales.tobytes() == factors[first // block[0] :].tobytes()
    # Quantised weights and their scales travel between shardings as two tensors.
    onward = pair.publish({"x": made, "x.scale": scales}, "quantised")
    again, again_scales = np.zeros_like(part), np.zeros_like(part_scales)
    pair.fill(
        onward,
        {
            "x": weights.part(again, made.shape, (first, 0)),
            "x.scale": weights.part(again_scales, scales.shape, (first // block[0], 0)),
        },
    )
    assert again.tobytes() == part.tobytes()
    assert again_scales.tobytes() == part_scales.tobytes()
