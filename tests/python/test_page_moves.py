"""PageMove, which plans and posts moves of pages, and the checks of numbers beside it."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from kv_sides import PAIRS, PLAIN, TURNED, Side, connected, expected, same

import hmc
from hmc import _core
from hmc.kv import _moves, _remote
from hmc.kv._blocks import numbers
from hmc.kv._moves import SHORT, groups
from hmc.layout import Layout

MIB = 1 << 20
WHOLE = (0, 0)
ENDS: dict[str, Any] = {"transports": "shm", "devices": ("cpu", "cpu")}


def end(works: list[Any]) -> None:
    for work in works:
        work.wait(20)


def pages(
    pool: Side, peer: Any, other: Side, mine: Any, theirs: Any, tokens: int, *, reading: bool, firsts: tuple[int, int] = (0, 0)
) -> Any:
    """Between a side's pages and its peer's."""
    remote = pool.pool.remote(peer, other.pool.id)
    near, far = (pool.layout, mine, firsts[0]), (other.layout, theirs, firsts[1])
    source, target = (far, near) if reading else (near, far)
    return _core.PageMove(peer, source, target, tokens, pool.pool.buffers, remote.buffers, reading=reading)


@pytest.mark.parametrize("reading", [True, False], ids=["read", "written"])
@pytest.mark.parametrize("layouts", [PAIRS[0], PAIRS[1], PAIRS[2], PAIRS[5]], ids=["equal", "buffers", "blocks", "part"])
def test_what_moves_is_what_a_conversion_makes(layouts: tuple[str, str], reading: bool) -> None:
    """Layers one by one, from tokens within blocks, in an order of blocks of their own."""
    with connected(*layouts, **ENDS) as (a, b, to_a, to_b):
        giver, taker = (a, b) if reading else (b, a)
        tokens = 37
        given, taken = [5, 2, 7, 0], [1, 6, 3, 4]
        first, count = _moves.common(giver.layout.layers, taker.layout.layers)
        wanted = expected(giver, given, taker, taken, tokens, source_first=3, target_first=5)
        mine = (taken, given, (5, 3)) if reading else (given, taken, (3, 5))
        move = pages(b, to_a, a, mine[0], mine[1], tokens, reading=reading, firsts=mine[2])
        moved = 0
        for layer in range(first, first + count):
            works: list[Any] = []
            moved += move.post(works, (layer, 1))
            end(works)
        heads = _moves.common(giver.layout.heads, taker.layout.heads)[1]
        assert moved == count * heads * tokens * 2 * 32 * 2
        same(taker, wanted)
        del to_b


@pytest.mark.parametrize("source", [TURNED, PLAIN.replace("bf16", "f16")], ids=["short runs", "other elements"])
def test_what_is_to_be_converted_is_not_begun(source: str) -> None:
    with connected(source, PLAIN, **ENDS) as (a, b, to_a, _):
        before = [np.array(array) for array in b.arrays]
        move = pages(b, to_a, a, [0, 1], [0, 1], 30, reading=True)
        works: list[Any] = []
        assert move.post(works, (0, 3), SHORT) is None
        assert move.post(works, (1, 2), SHORT) is None
        assert works == []
        same(b, before)


def test_short_runs_move_where_nobody_minds() -> None:
    with connected(TURNED, PLAIN.replace("N=16 (kv D=32)", "N=32 (kv D=32)"), **ENDS) as (a, b, to_a, _):
        wanted = expected(a, [3, 1], b, [0, 2], 50)
        works: list[Any] = []
        pages(b, to_a, a, [0, 2], [3, 1], 50, reading=True).post(works, WHOLE)
        end(works)
        same(b, wanted)


@pytest.mark.parametrize("block", [1, 96], ids=["many runs", "runs above the limit"])
def test_operations_are_bounded(block: int) -> None:
    """At most 64 MiB each, but a run is one piece, whatever its length."""
    count = 160 // block if block > 1 else 160
    text = f"L=1 B={count} H=8 N=1024 (kv D={32 * block}) bf16"
    with connected(text, text, **ENDS) as (a, b, to_a, _):
        order = np.random.default_rng(5).permutation(count)
        into = np.random.default_rng(6).permutation(count)
        wanted = expected(a, order, b, into, count * 1024)
        works: list[Any] = []
        moved = pages(b, to_a, a, into, order, count * 1024, reading=True).post(works, WHOLE)
        end(works)
        assert moved == b.layout.buffer_bytes
        assert len(works) == (-(-moved // (64 * MIB)) if block == 1 else count)
        same(b, wanted)


def test_what_was_begun_is_known_after_an_error() -> None:
    """The second operation is refused: the first one is in flight, and the caller has its Work."""
    texts = ("L=2 | B=4 H=4 N=16 (kv D=32) bf16",) * 2
    with connected(*texts, **ENDS) as (a, b, to_a, _):
        remote = b.pool.remote(to_a, a.pool.id)
        small = b.ctx.buffer(16 << 10)  # one block
        # 13 tokens of the first block are one length of runs, 7 of the second one another.
        move = _core.PageMove(
            to_a, (a.layout, [0, 1], 3), (b.layout, [0, 3], 3), 20, [b.pool.buffers[0], small], remote.buffers, reading=True
        )
        works: list[Any] = []
        with pytest.raises(hmc.InvalidArgumentError):
            move.post(works, WHOLE)
        assert len(works) == 1
        end(works)
        assert move.post(works, (0, 1)) == 20 * 4 * 2 * 32 * 2
        end(works)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"near": []}, "0 buffers"),
        ({"far": "twice"}, "2 buffers"),
        ({"blocks": [99]}, "block"),
        ({"tokens": 17}, "token"),
        ({"first": 16}, "token"),
    ],
)
def test_moves_are_refused_by_name(change: dict[str, Any], names: str) -> None:
    with connected(PLAIN, PLAIN, **ENDS) as (a, b, to_a, _):
        remote = b.pool.remote(to_a, a.pool.id)
        far = remote.buffers * 2 if change.get("far") else remote.buffers
        source = (a.layout, change.get("blocks", [1]), change.get("first", 0))
        works: list[Any] = []
        with pytest.raises(hmc.InvalidArgumentError, match=names):
            _core.PageMove(
                to_a, source, (b.layout, [0], 0), change.get("tokens", 8), change.get("near", b.pool.buffers), far, reading=True
            ).post(works, WHOLE)
        assert works == []


@pytest.mark.parametrize(
    ("layer_bytes", "layers", "checked", "counts"),
    [
        (16 * MIB, (0, 32), 0, [1, 2, 4, 4, 4, 4, 4, 4, 4, 1]),
        (128 * MIB, (2, 3), 0, [1, 1, 1]),
        (1, (5, 7), 0, [7]),
        (MIB, (0, 9), 4 * MIB, [4, 4, 1]),
        (16 * MIB, (1, 6), 64 * MIB, [1, 2, 3]),
    ],
)
def test_groups_cover_every_layer_once(layer_bytes: int, layers: tuple[int, int], checked: int, counts: list[int]) -> None:
    found = list(groups(layer_bytes, layers, checked))
    assert [count for _, count in found] == counts
    assert [layer for first, count in found for layer in range(first, first + count)] == list(range(layers[0], sum(layers)))


def test_the_bytes_of_a_layer() -> None:
    with connected(*PAIRS[2], **ENDS) as (a, b, to_a, _):
        token = 4 * 2 * 32 * 2
        assert pages(b, to_a, a, [0, 1], [0, 1], 17, reading=True).layer_bytes == 32 * token
        assert pages(b, to_a, a, [0, 1, 2], [0, 1, 2], 33, reading=False).layer_bytes == 64 * token
        assert b.layout == Layout(PAIRS[2][1])


@pytest.mark.parametrize("blocks", [[3], [0, 11], list(range(12))])
def test_lists_of_blocks_are_taken_as_they_are(blocks: list[int]) -> None:
    found = numbers(blocks, 12, 12)
    assert found.dtype == np.uint64
    assert found.tolist() == blocks


@pytest.mark.parametrize(
    "blocks", [[], list(range(13)), [12], [-1], [1 << 63], [1 << 64], [-(1 << 64)], [3, 1 << 70]], ids=lambda one: str(one)[:20]
)
def test_numbers_of_no_block_are_refused(blocks: list[int]) -> None:
    with pytest.raises(hmc.InvalidArgumentError):
        numbers(blocks, 12, 12)


@pytest.mark.parametrize("block", [True, np.bool_(True), 1.0, "1", None], ids=str)
def test_what_is_no_number_is_refused_by_its_place(block: Any) -> None:
    with pytest.raises(TypeError, match=r"blocks\[1\]"):
        numbers([0, block], 12, 12)


def test_a_list_that_another_thread_changes_is_read_once() -> None:
    blocks, stop = [1, 2, 3], threading.Event()

    def change() -> None:
        while not stop.is_set():
            blocks[1] = 1 << 40
            blocks.append(4)
            blocks[1] = 2
            del blocks[3:]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3000):
            try:
                assert numbers(blocks, 8, 12).tolist() in ([1, 2, 3], [1, 2, 3, 4])
            except hmc.InvalidArgumentError:
                continue
    finally:
        stop.set()
        thread.join()


def test_rows_are_read_where_they_lie() -> None:
    with connected(PLAIN, PLAIN, **ENDS) as (a, b, to_a, _):
        remote = b.pool.remote(to_a, a.pool.id)
        table = a.pool.leases._rows
        table[:] = np.random.default_rng(7).integers(0, 1 << 63, table.shape, dtype=np.uint64)
        rows = np.array([4, 0, 11, 4], np.uint32)
        found = list(remote.read_rows(rows, 2, 3, b.pool.scratch, lambda work: work.wait(20)))
        assert np.array_equal(np.concatenate(found), table[rows][:, 2:5])
        _remote._READ_BYTES, held = 48, _remote._READ_BYTES  # two rows at a time
        try:
            parts = list(remote.read_rows(rows, 2, 3, b.pool.scratch, lambda work: work.wait(20)))
        finally:
            _remote._READ_BYTES = held
        assert len(parts) == 2
        assert np.array_equal(np.concatenate(parts), table[rows][:, 2:5])
        with pytest.raises(hmc.InvalidArgumentError):
            list(remote.read_rows(np.array([len(table)], np.uint32), 0, 1, b.pool.scratch, lambda work: work.wait(20)))


def test_nothing_goes_on_that_python_has_no_memory_to_name() -> None:
    testing = pytest.importorskip("_testcapi")
    text = "L=1 B=160 H=8 N=1024 (kv D=32) bf16"  # three operations
    tokens = 160 * 1024
    with connected(text, text, **ENDS) as (a, b, to_a, _):
        order = np.random.default_rng(5).permutation(160)
        move = pages(b, to_a, a, np.arange(160), order, tokens, reading=True)
        wanted = expected(a, order, b, np.arange(160), tokens)
        named = set()
        for lacking in range(20):
            works: list[Any] = []
            try:
                testing.set_nomemory(lacking, lacking + 1)
                move.post(works, WHOLE)
            except (MemoryError, TypeError):  # TypeError: for the number that it returns
                named.add(len(works))
            finally:
                testing.remove_mem_hooks()
            end(works)
            b.arrays[0][::4099] = 7
            before = b.arrays[0][::4099].copy()
            time.sleep(0.05)
            assert np.array_equal(b.arrays[0][::4099], before), f"written without a Work, of which {len(works)} are known"
        assert named == {0, 1, 2, 3}
        works = []
        move.post(works, WHOLE)
        end(works)
        same(b, wanted)
