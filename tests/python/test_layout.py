"""hmc.layout against NumPy: every pair of layouts, with random axes, splits, paddings, block sizes, element types and slices."""

from __future__ import annotations

import itertools
import random
import zlib
from typing import Any

import numpy as np
import pytest

import hmc
from hmc import layout as kv
from hmc.layout import Layout

# Orders of axes; extents, first layers and heads, and element types are drawn.
ORDERS = [
    "L B H N (kv D)",
    "L B kv H N D",
    "L B kv H D/8 N 8",
    "L kv B N H D",
    "L | B kv N H D",
    "L kv | B H N D",
    "B L H D N kv",
    "L B N/4 H kv D/8 N%4 D%8",
    "L B kv H D N",
    "D N kv H B L",
]
INTEGER = {1: np.uint8, 2: np.uint16, 4: np.uint32}
SIZE = {"f16": 2, "bf16": 2, "f32": 4, "f8_e4m3fn": 1, "f8_e4m3fnuz": 1, "f8_e5m2": 1}


class Cache:
    """A cache whose places are computed here, one axis after the other, without HMC."""

    def __init__(self, order: str, pad: dict[str, int] | None = None, **given: Any) -> None:
        self.layout = Layout(order, **given)
        self.extent = {
            "L": self.layout.layers[1],
            "B": self.layout.blocks,
            "N": self.layout.block,
            "H": self.layout.heads[1],
            "kv": 2,
            "D": self.layout.dims,
        }
        self.size = SIZE[self.layout.dtype]
        words = self.layout.buffer_bytes // self.size
        rng = np.random.default_rng(zlib.crc32(order.encode()))
        self.arrays = [rng.integers(0, 256, words * self.size, dtype=np.uint8) for _ in range(self.layout.buffers)]
        self.places = self._places(str(self.layout))

    def _places(self, text: str) -> Any:
        """Buffer * 2^40 + element, for every (L, B, N, H, kv, D)."""
        steps = text.split()[:-1] if "scale" not in text else text.split()[:-2]
        across = steps.index("|") if "|" in steps else 0
        grid = np.zeros([self.extent[a] for a in ("L", "B", "N", "H", "kv", "D")], dtype=np.int64)
        index = dict(zip(("L", "B", "N", "H", "kv", "D"), np.indices(grid.shape), strict=True))
        stride = 1
        for step in reversed([s for s in steps[across:] if s != "|"]):
            step, _, explicit = step.partition(":")
            name = step.split("=")[0].split("/")[0].split("%")[0]
            part = int(step.replace("%", "/").split("/")[1]) if "/" in step or "%" in step else 0
            x = index[name]
            x, n = (
                (x, self.extent[name]) if not part else (x % part, part) if "%" in step else (x // part, self.extent[name] // part)
            )
            stride = int(explicit) if explicit else stride
            grid += x * stride
            stride *= n
        for step in steps[:across]:
            name = step.split("=")[0]
            above = 1
            for other in steps[:across][steps.index(step) + 1 :]:
                above *= self.extent[other.split("=")[0]]
            grid += index[name] * above << 40
        return grid

    def read(self) -> Any:
        """The elements' bits as an array (L, B, N, H, kv, D)."""
        flat = [array.view(INTEGER[self.size]) for array in self.arrays]
        out = np.empty(self.places.shape, dtype=INTEGER[self.size])
        for number, words in enumerate(flat):
            mine = self.places >> 40 == number
            out[mine] = words[self.places[mine] & (1 << 40) - 1]
        return out

    def tokens(self, blocks: Any, first: int, count: int) -> Any:
        """(L, tokens, H, kv, D) of a sequence."""
        chosen = self.read()[:, blocks]
        shape = chosen.shape
        return chosen.reshape(shape[0], -1, *shape[3:])[:, first : first + count]


def random_order(rng: random.Random) -> str:
    steps = ["L", "B", "H", "kv"]
    steps += rng.choice([["N"], ["N/2", "N%2"], ["N/4", "N%4"]])
    steps += rng.choice([["D"], ["D/8", "D%8"], ["D/4", "D%4"]])
    rng.shuffle(steps)
    if rng.random() < 0.3:
        front = rng.choice([["L"], ["L", "kv"], ["kv"]])
        steps = [*front, "|", *(s for s in steps if s not in front)]
    return " ".join(steps)


def pair(
    rng: random.Random, source_order: str, target_order: str, source_type: str, target_type: str
) -> tuple[Cache, Cache, dict[str, Any]]:
    dims = rng.choice([8, 16, 24, 64])
    layers = sorted(rng.sample(range(5), 2))
    heads = sorted(rng.sample(range(7), 2))
    sides = []
    blocks = []
    for order, dtype in ((source_order, source_type), (target_order, target_type)):
        block = rng.choice([4, 8, 16, 32])
        count = rng.randint(2, 5) if block > 8 else 9
        extra = rng.randint(0, 2)
        sides.append(
            Cache(
                order,
                L=layers[1] - layers[0] + 1 + extra,
                first_layer=layers[0],
                H=heads[1] - heads[0] + 1 + extra,
                first_head=heads[0],
                B=count,
                N=block,
                D=dims,
                dtype=dtype,
            )
        )
        blocks.append(np.array(rng.sample(range(count), rng.randint(1, count)), dtype=np.uint64))
    firsts = [rng.randint(0, len(b) * s.layout.block - 1) for b, s in zip(blocks, sides, strict=True)]
    tokens = min(len(b) * s.layout.block - f for b, s, f in zip(blocks, sides, firsts, strict=True))
    how = {"tokens": rng.randint(1, tokens), "source_first": firsts[0], "target_first": firsts[1], "blocks": blocks}
    return sides[0], sides[1], how


def moved(source: Cache, target: Cache, how: dict[str, Any]) -> tuple[Any, Any]:
    """What the common part of both caches holds: source's bits and target's, each (L, tokens, H, kv, D)."""
    result = []
    for cache, blocks, first in ((source, how["blocks"][0], how["source_first"]), (target, how["blocks"][1], how["target_first"])):
        bits = cache.tokens(blocks, first, how["tokens"])
        low = [max(a, b) for a, b in zip(ranges(source.layout)[::2], ranges(target.layout)[::2], strict=True)]
        high = [min(a, b) for a, b in zip(ranges(source.layout)[1::2], ranges(target.layout)[1::2], strict=True)]
        mine = ranges(cache.layout)
        result.append(bits[low[0] - mine[0] : high[0] - mine[0], :, low[1] - mine[2] : high[1] - mine[2]])
    return result[0], result[1]


def ranges(layout: Layout) -> list[int]:
    (layer, layers), (head, heads) = layout.layers, layout.heads
    return [layer, layer + layers, head, head + heads]


def convert(source: Cache, target: Cache, how: dict[str, Any], **more: Any) -> int:
    return kv.convert(
        source.layout,
        source.arrays,
        how["blocks"][0],
        target.layout,
        target.arrays,
        how["blocks"][1],
        how["tokens"],
        source_first=how["source_first"],
        target_first=how["target_first"],
        **more,
    )


def untouched_but(target: Cache, before: list[Any], how: dict[str, Any]) -> None:
    """Nothing but the moved elements changed, paddings included."""
    after = [array.copy() for array in target.arrays]
    again = Cache.__new__(Cache)
    again.__dict__.update(target.__dict__)
    keep = target.places[:, how["blocks"][1].astype(int)]
    shape = keep.shape
    places = keep.reshape(shape[0], -1, *shape[3:])[:, how["target_first"] : how["target_first"] + how["tokens"]].reshape(-1)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        mine = places[places >> 40 == number] & (1 << 40) - 1
        new.view(INTEGER[target.size])[mine] = 0
        old.view(INTEGER[target.size])[mine] = 0
        assert np.array_equal(old, new)


@pytest.mark.parametrize(("source_order", "target_order"), list(itertools.product(ORDERS, ORDERS)))
def test_every_pair_of_layouts(source_order: str, target_order: str) -> None:
    rng = random.Random(source_order + target_order)
    for dtype in ("bf16", rng.choice(["f8_e5m2", "f32"])):
        source, target, how = pair(rng, source_order, target_order, dtype, dtype)
        before = [array.copy() for array in target.arrays]
        digest = convert(source, target, how, digest="source", position=7)
        assert convert(source, target, how, digest="target", position=7) == digest
        want, got = moved(source, target, how)
        assert np.array_equal(want, got)
        untouched_but(target, before, how)
        common = {
            "layers": (max(source.layout.layers[0], target.layout.layers[0]), want.shape[0]),
            "heads": (max(source.layout.heads[0], target.layout.heads[0]), want.shape[2]),
        }
        for cache, blocks, first in (
            (source, how["blocks"][0], how["source_first"]),
            (target, how["blocks"][1], how["target_first"]),
        ):
            assert kv.digest(cache.layout, cache.arrays, blocks, how["tokens"], first=first, position=7, **common) == digest


@pytest.mark.parametrize("seed", range(60))
def test_random_layouts_convert_and_run_alike(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice(list(SIZE))
    source, target, how = pair(rng, random_order(rng), random_order(rng), dtype, dtype)
    other = [array.copy() for array in target.arrays]
    convert(source, target, how)
    want, got = moved(source, target, how)
    assert np.array_equal(want, got)
    total = 0
    for run in kv.runs(
        source.layout,
        how["blocks"][0],
        target.layout,
        how["blocks"][1],
        how["tokens"],
        source_first=how["source_first"],
        target_first=how["target_first"],
    ):
        for a, b in zip(run.source_offsets.tolist(), run.target_offsets.tolist(), strict=True):
            other[run.target_buffer][b : b + run.nbytes] = source.arrays[run.source_buffer][a : a + run.nbytes]
            total += run.nbytes
    assert total == want.size * source.size
    assert all(np.array_equal(a, b) for a, b in zip(other, target.arrays, strict=True))


def decode(bits: Any, dtype: str) -> Any:
    """The numbers of these bits, by the definitions of the formats."""
    with np.errstate(invalid="ignore"):  # NaN with a payload
        return decoded(bits, dtype)


def decoded(bits: Any, dtype: str) -> Any:
    if dtype == "f32":
        return bits.view(np.float32).astype(np.float64)
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float64)
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    exponent, mantissa, bias = {"f8_e4m3fn": (4, 3, 7), "f8_e4m3fnuz": (4, 3, 8), "f8_e5m2": (5, 2, 15)}[dtype]
    code = bits.astype(np.int64)
    e, m = code >> mantissa & (1 << exponent) - 1, code & (1 << mantissa) - 1
    value = np.where(e == 0, m * 2.0 ** (1 - bias - mantissa), (1 + m / 2.0**mantissa) * 2.0 ** (e - bias))
    value = np.where(code >> 7 == 1, -value, value)
    if dtype == "f8_e4m3fn":
        return np.where(code & 0x7F == 0x7F, np.nan, value)
    if dtype == "f8_e4m3fnuz":
        return np.where(code == 0x80, np.nan, value)
    return np.where(code & 0x7F == 0x7C, np.where(code >> 7 == 1, -np.inf, np.inf), np.where(code & 0x7F > 0x7C, np.nan, value))


LARGEST = {"f8_e4m3fn": 448.0, "f8_e4m3fnuz": 240.0, "f8_e5m2": 57344.0}


def nearest(values: Any, dtype: str) -> Any:
    """float32 numbers rounded to nearest even among those of a type: by search, not by bits."""
    if dtype == "f32":
        return values.astype(np.float64)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float64)
    width = np.uint16 if dtype == "bf16" else np.uint8
    codes = np.arange(1 << 15 if dtype == "bf16" else 1 << 7, dtype=width)
    table = decode(codes, dtype)
    table = table[np.isfinite(table)]
    x = np.abs(values.astype(np.float64))
    if dtype in LARGEST:
        x = np.where(x > LARGEST[dtype], LARGEST[dtype], x)
    high = np.minimum(np.searchsorted(table, x), len(table) - 1)
    low = np.maximum(high - 1, 0)
    nearer_low = x - table[low] < table[high] - x
    tie = x - table[low] == table[high] - x
    chosen = np.where(nearer_low | (tie & (low % 2 == 0)), low, high)
    result = np.where(np.isnan(x), np.nan, table[chosen])
    if dtype == "bf16":  # beyond the largest number
        result = np.where(x >= table[-1] + (table[-1] - table[-2]) / 2, np.inf, result)
    return np.where(np.signbit(values), -result, result)


@pytest.mark.parametrize(("source_type", "target_type"), [p for p in itertools.product(SIZE, SIZE) if p[0] != p[1]])
def test_casts_round_as_numpy_does(source_type: str, target_type: str) -> None:
    rng = random.Random(source_type + target_type)
    for orders in (
        ("L B H N (kv D)", "L B kv H D/8 N 8"),
        ("L B kv H D N", "L B kv H D N"),
        (random_order(rng), random_order(rng)),
    ):
        source, target, how = pair(rng, *orders, source_type, target_type)
        for scales in ([], [0.5], [0.3, 7.0]):
            layout = Cache.__new__(Cache)
            layout.__dict__.update(source.__dict__)
            if scales:
                layout.layout = Layout(str(source.layout) + " scale=" + ",".join(map(str, scales)))
            if source_type == "f32":  # random bits are seldom near the numbers of 8-bit types
                words = source.arrays[0].view(np.float32)
                words[:] = np.random.default_rng(5).normal(0, 100, words.size)
            digest = convert(layout, target, how, digest="source")
            want, got = moved(source, target, how)
            with np.errstate(over="ignore", invalid="ignore"):
                values = decode(want, source_type).astype(np.float32)
                if scales:
                    values = values * np.array(scales, dtype=np.float32).reshape(-1, 1)
                expected = nearest(values, target_type)
            found = decode(got, target_type)
            assert np.array_equal(expected, found, equal_nan=True)
            common = {
                "layers": (max(source.layout.layers[0], target.layout.layers[0]), want.shape[0]),
                "heads": (max(source.layout.heads[0], target.layout.heads[0]), want.shape[2]),
            }
            again = kv.digest(source.layout, source.arrays, how["blocks"][0], how["tokens"], first=how["source_first"], **common)
            assert again == digest
            for array in target.arrays:
                array[:] = 0
            written = convert(layout, target, how, digest="target")
            assert np.array_equal(moved(source, target, how)[1], got)
            assert written == kv.digest(
                target.layout, target.arrays, how["blocks"][1], how["tokens"], first=how["target_first"], **common
            )


def test_a_digest_is_of_the_source_or_the_target() -> None:
    cache = Cache("L B H N (kv D)", L=1, B=2, N=16, H=4, D=32, dtype="bf16")
    for wrong in (True, "", "both", 1):
        with pytest.raises(hmc.InvalidArgumentError, match='pass "source", "target" or None'):
            kv.convert(cache.layout, cache.arrays, [0], cache.layout, cache.arrays, [1], 16, digest=wrong)  # type: ignore[arg-type]


def test_digests_add_up() -> None:
    cache = Cache("L B kv H D/8 N 8", L=3, B=6, N=16, H=4, D=32, dtype="bf16", first_layer=2, first_head=5)
    blocks = [5, 0, 3, 1]
    whole = kv.digest(cache.layout, cache.arrays, blocks, 61)
    table = kv.digests(cache.layout, cache.arrays, blocks, 61)
    assert table.shape == (3, 4, 4)
    assert int(table.sum(dtype=np.uint64)) == whole
    parts = [
        kv.digest(cache.layout, cache.arrays, blocks, n, first=first, position=first, layers=(layer, 1), heads=heads)
        for layer in (2, 3, 4)
        for heads in ((5, 1), (6, 3))
        for first, n in ((0, 13), (13, 48))
    ]
    assert sum(parts) % (1 << 64) == whole
    assert kv.digest(cache.layout, cache.arrays, blocks, 16, first=16, position=16, layers=(3, 1), heads=(6, 1)) == table[1, 1, 1]


def test_digest_notices_every_changed_bit_and_every_swap() -> None:
    cache = Cache("L B H N (kv D)", L=1, B=2, N=4, H=2, D=8, dtype="bf16")
    before = kv.digest(cache.layout, cache.arrays, [0, 1], 8)
    seen = {before}
    array = cache.arrays[0]
    for bit in range(array.size * 8):
        array[bit // 8] ^= 1 << bit % 8
        seen.add(kv.digest(cache.layout, cache.arrays, [0, 1], 8))
        array[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 1 + array.size * 8
    assert kv.digest(cache.layout, cache.arrays, [1, 0], 8) != before
    words = array.view(np.uint16)
    for i, j in itertools.combinations(range(40), 2):
        words[[i, j]] = words[[j, i]]
        assert words[i] == words[j] or kv.digest(cache.layout, cache.arrays, [0, 1], 8) != before
        words[[i, j]] = words[[j, i]]
