"""What hmc.weights refuses, by name: parts, targets, damaged descriptions of a peer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from weights_pair import Pair, random

import hmc
from hmc import weights
from hmc.weights._manifest import Manifest, Shard


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


def test_what_does_not_fit_is_refused_by_name(pair: Pair) -> None:
    source = pair.publish({"x": random((20, 33), np.float32), "n": random((9,), np.int64)})
    half = pair.publish({"x": weights.part(random((5, 33), np.float32), (20, 33), (3, 0))}, "half")
    frozen = np.zeros((20, 33), np.float32)
    frozen.flags.writeable = False
    refused: list[tuple[Any, Any, str]] = [
        (source, {"y": np.zeros(3)}, "tensor y: no source"),
        (source, {"x": np.zeros((20, 32), np.float32)}, r"tensor x has shape \(20, 33\)"),
        (source, {"x": weights.part(np.zeros((5, 33), np.float32), (20, 34))}, "tensor x has shape"),
        (half, {"x": np.zeros((20, 33), np.float32)}, r"tensor x: no source has \[0:3, 0:33\]"),
        (source, {"x": frozen}, "tensor x is read-only"),
        (source, {"x": b"20"}, "tensor x"),
        (source, {"n": np.int64(3)}, "tensor n"),
        (source, {"": np.zeros(3)}, "name"),
        (source, {3: np.zeros(3)}, "name"),
        (source, [np.zeros(3)], "mapping"),
        ([], {"x": np.zeros(3)}, "0 sources"),
        (pair.peer, {"x": np.zeros(3)}, "Peer is no source"),
        (source, {"x": object()}, "tensor x"),
    ]
    for sources, target, text in refused:
        with pytest.raises(hmc.InvalidArgumentError, match=text):
            weights.plan(sources, target)
    for target in ({"x": np.zeros((20, 33), np.float64)}, {"n": np.zeros(9, np.int32)}, {"n": np.zeros(9, np.float32)}):
        with pytest.raises(hmc.UnsupportedError, match="casts are among"):
            weights.plan(source, target)
    for shadow, kind in ((None, hmc.InvalidArgumentError), ("gpu", hmc.InvalidArgumentError), ("cuda:9999", hmc.UnsupportedError)):
        with pytest.raises(kind):
            weights.plan(source, {"x": np.zeros((20, 33), np.float32)}, shadow=shadow)
    for wrong in (-1, 1 << 62):
        with pytest.raises(hmc.InvalidArgumentError, match="epoch"):
            weights.publish(pair.source_ctx, {}, epoch=wrong, name="other")
    with pytest.raises(hmc.InvalidArgumentError, match="taken"):
        weights.publish(pair.source_ctx, {"x": np.zeros(3)})
    for name in ("", "x" * 129, "\ud800", 3):
        with pytest.raises(hmc.InvalidArgumentError, match="name"):
            weights.publish(pair.source_ctx, {}, name=name)  # type: ignore[arg-type]
    for tensors in ({"x": np.zeros((1,) * 17)}, {"x": weights.part(np.zeros(3), (1 << 50,))}, {"\ud800": np.zeros(3)}):
        with pytest.raises(hmc.InvalidArgumentError):
            weights.publish(pair.source_ctx, tensors, name="other")


def test_parts_that_cannot_be_are_refused() -> None:
    array = np.zeros((4, 6), np.uint16)
    for arguments in (((4,), None), ((4, 5), None), ((8, 6), (5, 0)), ((8, 6), (-1, 0)), ((8, 6), (0,))):
        with pytest.raises(hmc.InvalidArgumentError, match="does not lie within"):
            weights.part(array, *arguments)
    with pytest.raises(hmc.InvalidArgumentError, match="2 bytes"):
        weights.part(array, dtype="float32")
    for text in ("(,)u2", "(99999999999,)u2"):
        with pytest.raises(hmc.InvalidArgumentError, match="element type"):
            weights.part(array, dtype=text)
    for axis, rank, size in ((2, 0, 1), (-3, 0, 1), (0, 1, 1), (0, -1, 2)):
        with pytest.raises(hmc.InvalidArgumentError, match="no such"):
            weights.shard(array, axis, rank, size)
    with pytest.raises(hmc.InvalidArgumentError, match="not divisible"):
        weights.fused(array, {"a": 3, "b": 5}, rank=0, size=2)
    with pytest.raises(hmc.InvalidArgumentError, match="add up"):
        weights.fused(array, {"a": 2, "b": 4}, rank=0, size=2)


def test_manifests_are_bounded() -> None:
    made = Manifest([Shard.of("x", "float32", (4, 4), (0, 0), (2, 4), 0, 0)], b"s", b"d", [b"a"])
    assert Manifest.decode(made.encode()).encode() == made.encode()
    text = made.encode().decode()
    wrong = [
        text.replace('"x"', "3"),
        text.replace('"float32"', '"float3"'),
        text.replace('"float32"', '"(,)f4"'),  # NumPy evaluates it
        text.replace('"float32"', '"f4"'),
        text.replace("[2,4],0", "[2,4],1"),
        text.replace("[2,4],0", "[2,4],-1"),
        text.replace("[2,4],0", "[5,4],0"),
        text.replace("[2,4],0", "[2],0"),
        text.replace("[2,4],0", "[2,-4],0"),
        text.replace("[2,4],0", "[2,4.5],0"),
        text.replace("[4,4]", f"[4,{1 << 60}]"),
        text.replace("[4,4]", "[]"),
        text.replace(':1,"shards"', ':2,"shards"'),
        text.replace('"arrays"', '"array"'),
        text[:-1],
        "",
        "[]",
        "[" * 100000,
        "null",
    ]
    for one in wrong:
        assert one != text
        with pytest.raises(hmc.ProtocolError):
            Manifest.decode(one.encode())


def test_damaged_manifests_are_refused() -> None:
    """Random damage is refused, or gives a manifest within its bounds; nothing else is raised."""
    made = Manifest(
        [Shard.of(f"layer.{i}", "bfloat16", (64, 1030, 3), (i, 0, 0), (2, 1030, 3), i, 90 * i) for i in range(4)],
        b"s",
        b"d",
        [b"a"] * 4,
    )
    data = np.frombuffer(made.encode(), np.uint8)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(5000):
        damaged = data.copy()
        for at in rng.integers(0, len(data), int(rng.integers(1, 4))):
            damaged[at] = rng.choice(np.frombuffer(b'0123456789-.,"[]{}ex \xff', np.uint8))
        try:
            found = Manifest.decode(damaged[: int(rng.integers(len(data) - 2, len(data) + 1))].tobytes())
        except hmc.ProtocolError:
            refused += 1
            continue
        for shard in found.shards:
            assert all(0 <= a and a + e <= s for s, a, e in zip(shard.shape, shard.at, shard.extents, strict=True))  # noqa: SIM300
    assert refused > 1000


class Hostile:
    """Publishes what a peer may send: a manifest of its choice."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.kept: list[hmc.ConnBuffer] = []
        self.count = 0
        state = self.memory(64)
        state.numpy(np.uint64)[:2] = [2, 1]
        self.manifest: dict[str, Any] = {
            "hmc.weights": 1,
            "shards": [["x", "float32", [32, 32], [0, 0], [32, 32], 0, 0]],
            "state": self.described(state),
            "digests": self.described(self.memory(4096)),
            "arrays": [self.described(self.memory(4096))],
        }

    def memory(self, nbytes: int) -> hmc.ConnBuffer:
        self.kept.append(self.pair.source_ctx.buffer(nbytes, access="r"))
        return self.kept[-1]

    def described(self, buffer: hmc.ConnBuffer) -> str:
        return bytes(buffer.descriptor()).hex()

    def look_up(self, **changed: Any) -> weights.Source:
        data = json.dumps({**self.manifest, **changed}).encode()
        self.count += 1
        buffer = self.memory(len(data))
        buffer.numpy()[:] = np.frombuffer(data, np.uint8)
        self.pair.source_ctx.publish(f"hmc.weights.{self.count}", buffer)
        return weights.lookup(self.pair.ctx, self.pair.peer, f"{self.count}", timeout=20)


def test_memory_that_the_peer_does_not_have_is_a_protocol_error(pair: Pair) -> None:
    hostile = Hostile(pair)
    target = {"x": np.zeros((32, 32), np.float32)}
    pair.plan(hostile.look_up(), target).pull(verify=False).wait(20)
    own = pair.ctx.buffer(4096)
    guessed = bytearray.fromhex(hostile.manifest["arrays"][0])
    seen = set()
    for at in range(len(guessed)):
        guessed[at] ^= 1
        try:
            hostile.look_up(arrays=[guessed.hex()])
        except hmc.HmcError as error:
            seen.add(type(error))
        guessed[at] ^= 1
    assert seen <= {hmc.ProtocolError, hmc.StaleBufferError}
    with pytest.raises(hmc.ProtocolError, match="that it does not have"):
        hostile.look_up(arrays=[hostile.described(own)])


def test_no_more_of_a_table_is_read_than_the_plan_compares(pair: Pair) -> None:
    hostile = Hostile(pair)
    table = hostile.described(hostile.memory(64 << 20))
    rows = 1 << 22
    shards = [["x", "uint8", [rows, 1], [0, 0], [rows, 1], 0, 4 << 20], ["other", "uint8", [rows, 1], [0, 0], [rows, 1], 0, 0]]
    source = hostile.look_up(shards=shards, arrays=[hostile.described(hostile.memory(rows))], digests=table)
    target = weights.part(np.zeros((10, 1), np.uint8), (rows, 1), (rows - 20, 0))
    plan = pair.plan(source, {"x": target})
    assert plan.excerpt(0).nbytes == 80
    before = pair.ctx.counters()
    with pytest.raises(hmc.CorruptError):
        plan.pull(timeout=20).wait()
    after = pair.ctx.counters()
    assert sum(after[name] - before.get(name, 0) for name in after if name.startswith("get.bytes")) < 1000
    assert plan.scratch.spare * 4096 >= sum(one.nbytes for many in plan.scratch._spare.values() for one in many)


def test_shards_that_cut_a_target_into_too_many_boxes_are_refused(pair: Pair) -> None:
    hostile = Hostile(pair)
    shards = [["x", "float32", [4000, 4000], [2 * i, 2 * i], [1, 1], 0, -1] for i in range(600)]
    source = hostile.look_up(shards=shards, arrays=[hostile.described(hostile.memory(4))])
    with pytest.raises(hmc.InvalidArgumentError, match="600 shards cut the target"):
        weights.plan(source, {"x": np.zeros((4000, 4000), np.float32)})


@pytest.mark.parametrize(
    "header",
    [
        {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 5]},
        {"dtype": "F32", "shape": [1 << 63, 0], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [1] * 70, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2] * 3000000, "data_offsets": [0, 4]},  # their product takes minutes, which Ctrl-C does not end
        {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": "04"},
        {"dtype": 5, "shape": [1], "data_offsets": [0, 4]},
    ],
)
def test_damaged_safetensors_are_refused(header: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps({"x": header}).encode()
    file = tmp_path / "damaged.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"abcd")
    with pytest.raises(hmc.InvalidArgumentError, match=r"damaged\.safetensors"):
        weights.from_safetensors(file)


def test_a_state_has_names_and_the_shards_of_its_meshes() -> None:
    class Shard:
        """A DTensor of a mesh that this rank is not part of."""

        placements, shape = ("Shard(0)",), (8, 4)
        device_mesh = SimpleNamespace(get_coordinate=lambda: None)

        def to_local(self) -> Any:
            return np.zeros(0)

    assert set(weights.from_state({"here": np.zeros(3), "elsewhere": Shard()})) == {"here"}
    for wrong in ({3: np.zeros(3)}, {3: "text"}):
        with pytest.raises(hmc.InvalidArgumentError, match="the name 3 of the state"):
            weights.from_state(wrong)  # type: ignore[arg-type]


def test_a_name_that_a_safetensors_file_has_twice_is_refused(tmp_path: Path) -> None:
    entry = b'"x":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}'
    file = tmp_path / "damaged.safetensors"
    text = b"{" + entry + b"," + entry + b"}"
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"abcd")
    with pytest.raises(hmc.InvalidArgumentError, match=r"damaged\.safetensors is no safetensors file: a name is there twice"):
        weights.from_safetensors(file)


@pytest.mark.parametrize("shape", [(3000, 1000), (5, 5)])
def test_commit_into_an_array_that_was_resized_is_refused(pair: Pair, shape: tuple[int, int]) -> None:
    source = pair.publish({"x": np.ones((100, 100), np.float32), "y": np.ones(3)})
    target, other = np.zeros((100, 100), np.float32), np.zeros(3)
    plan = pair.plan(source, {"x": target, "y": other})
    plan.pull().wait(20)
    target.resize(shape, refcheck=False)  # a smaller one has the same address
    with pytest.raises(hmc.InvalidArgumentError, match="tensor x: its array was resized"):
        plan.commit()  # it wrote freed memory
    assert not other.any()


@pytest.mark.parametrize("shape", [(3000, 1000), (5, 5)])
def test_an_update_that_moves_an_array_is_refused(pair: Pair, shape: tuple[int, int]) -> None:
    array = np.ones((100, 100), np.float32)
    with weights.publish(pair.source_ctx, {"x": array}) as source:
        with pytest.raises(hmc.InvalidArgumentError, match="tensor x: its array was resized"), source.update(1):
            array.resize(shape, refcheck=False)
        assert source.epoch == 0


def test_quantised_refusals(pair: Pair) -> None:
    values = np.ones((4, 256), np.float32)
    values[2, 200] = np.nan
    source = pair.publish({"x": values, "n": np.ones((4, 256), np.int32)})
    made, scales = np.zeros((4, 256), np.uint8), np.zeros((1, 2), np.float32)
    target = weights.quantised(made, scales, dtype="float8_e4m3fn")
    plan = pair.plan(source, {"x": target})
    with pytest.raises(hmc.UnsupportedError, match="tensor x has a NaN"):
        plan.pull(timeout=20).wait()
    with pytest.raises(hmc.InvalidArgumentError, match="failed"):
        plan.commit()
    assert not made.any()
    with pytest.raises(hmc.UnsupportedError, match="tensor n"):
        weights.plan(source, {"n": target})
    with pytest.raises(hmc.InvalidArgumentError, match="tensor x is a target's"):
        weights.publish(pair.source_ctx, {"x": target}, name="other")
    with pytest.raises(hmc.InvalidArgumentError, match="pass float8_e4m3fn and float32"):
        weights.quantised(made, scales)
    for arguments in ({"block": (4, 64)}, {"shape": (8, 256), "at": (2, 0)}, {"shape": (8, 256)}, {"block": (0, 128)}):
        with pytest.raises(hmc.InvalidArgumentError, match="block"):
            weights.quantised(made, scales, dtype="float8_e4m3fn", **arguments)  # type: ignore[arg-type]


def test_flags_are_bools(pair: Pair) -> None:
    source, target = pair.publish({"x": np.ones(3)}), np.zeros(3)
    plan = pair.plan(source, {"x": target})
    for wrong in ("no", 0, None):
        with pytest.raises(TypeError, match="verify must be a bool, not a"):
            plan.pull(verify=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="digest must be a bool, not a"):
            weights.publish(pair.source_ctx, {"x": target}, name="other", digest=wrong)  # type: ignore[arg-type]
    plan.pull(verify=np.bool_(True)).wait(20)  # type: ignore[arg-type]
    weights.publish(pair.source_ctx, {"x": target}, name="other").close()  # nothing of a refused one is left


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_copy_that_fails_says_that_the_target_is_mixed(pair: Pair, monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> None:
    arrays = {name: np.full(5, number + 1.0) for number, name in enumerate("xyz")}
    targets = {name: np.zeros(5) for name in arrays}
    plan = pair.plan(pair.publish(arrays, epoch=3), targets)
    plan.pull().wait(20)
    broken, calls = next(sink for place, sink in zip(plan.places, plan._sinks, strict=True) if place.name == "y"), []

    def fails(_: Any) -> None:
        calls.append(1)
        if interrupted and len(calls) == 1:
            raise KeyboardInterrupt
        raise hmc.DeviceError("the device is lost", native=46)

    with monkeypatch.context() as while_broken:
        while_broken.setattr(broken, "commit", fails)
        with pytest.raises((hmc.DeviceError, KeyboardInterrupt)) as raised:
            plan.commit()
        error = raised.value
        assert type(error) is (KeyboardInterrupt if interrupted else hmc.DeviceError)
        if not interrupted:
            assert getattr(error, "native", 0) == 46
        assert isinstance(error.__cause__, hmc.DeviceError)
        said = str(error.__cause__ if interrupted else error)
        assert "tensor y was not copied: the device is lost. The target is mixed" in said
        assert len(calls) == (2 if interrupted else 1)
    assert plan.epoch is None
    assert plan.commit() == 3
    assert all(np.array_equal(targets[name], array) for name, array in arrays.items())
