"""As a script: weights published on each of the named devices and pulled into each, every byte compared."""

from __future__ import annotations

import contextlib
import itertools
import sys
from typing import Any

import numpy as np
from device_arrays import DeviceArray
from experts_layer import refused
from weights_pair import Pair, cast, numbers, random

import hmc
from hmc import tensors, weights
from hmc.weights import _cells, _compute, _publish
from hmc.weights._digest import Grid

#: name: (shape, element type). A row that is longer than a band of digests, odd rows, a scalar, no elements.
MODEL = {
    "row": ((70_001,), "float32"),
    "wide": ((3, 9001), "bfloat16"),
    "odd": ((130, 77), "uint8"),
    "deep": ((6, 5, 1031), "float16"),
    "scalar": ((), "float64"),
    "none": ((0, 5), "int32"),
}
WORDS = {"bfloat16": "uint16"}


class On:
    """A typed array on a device or the CPU."""

    def __init__(self, host: Any, dtype: str, device: str) -> None:
        self.host = np.ascontiguousarray(host)
        self._bytes = None if device == "cpu" else DeviceArray(self.host, device)
        self.array: Any = self.host
        if self._bytes is not None:
            self.array = tensors.view(self._bytes.memory, dtype, host.shape)

    def set(self, host: Any) -> None:
        if self._bytes is None:
            self.host[...] = host
        elif host.nbytes:
            self._bytes.memory.copy_from(np.ascontiguousarray(host))

    def bytes(self) -> bytes:
        return self.host.tobytes() if self._bytes is None else self._bytes.copy().tobytes()


def value(name: str, epoch: int) -> Any:
    shape, dtype = MODEL[name]
    return random(shape, WORDS.get(dtype, dtype), epoch)


def bytes_of(tensor: tensors.Tensor) -> bytes:
    host = np.empty(tensor.nbytes, np.uint8)
    if tensor.nbytes:
        tensor.memory().copy_to(host)
    return host.tobytes()


def whole(pair: Pair, here: str, there: str, shadow: str) -> None:
    """Epochs, and a byte that changes outside update()."""
    held = {name: On(value(name, 1), dtype, here) for name, (_, dtype) in MODEL.items()}
    target = {name: On(value(name, 0), dtype, there) for name, (_, dtype) in MODEL.items()}
    given = {name: weights.part(one.array, dtype=MODEL[name][1]) for name, one in held.items()}
    into = {name: weights.part(one.array, dtype=MODEL[name][1]) for name, one in target.items()}
    with weights.publish(pair.source_ctx, given, epoch=1, name="model") as source:
        plan = pair.plan(weights.lookup(pair.ctx, pair.peer, "model", timeout=20), into, shadow=shadow)
        assert plan.shadow.device == shadow
        for epoch in (1, 2):
            if epoch == 2:
                with source.update(2):
                    for name, one in held.items():
                        one.set(value(name, 2))
            plan.pull(timeout=30).wait()
            for name, one in target.items():
                assert one.bytes() == value(name, epoch - 1).tobytes(), (name, "before commit", here, there)
            for name, one in plan.pulled()[1]:
                assert bytes_of(one) == value(name, epoch).tobytes(), (name, "pulled", here, there, shadow)
            assert plan.commit() == epoch
            for name, one in target.items():
                assert one.bytes() == value(name, epoch).tobytes(), (name, epoch, here, there)
        spoilt = value("row", 2).copy()
        spoilt.view(np.uint8)[200_003] ^= 4
        held["row"].set(spoilt)
        assert "row" in refused(hmc.CorruptError, lambda: plan.pull(timeout=30).wait())
        plan.pull(timeout=30, verify=False).wait()
        plan.commit()
        assert target["row"].bytes() == spoilt.tobytes()


def pieces(pair: Pair, here: str, there: str, shadow: str) -> None:
    """Shards of another cut, casts, and blocks that are quantised."""
    array, name = random((64, 333), np.uint16, 5), f"pieces {here} {there} {shadow}"
    cut = [On(array[:, :100], "uint16", here), On(array[:, 100:], "uint16", here)]
    floats = numbers((9, 256), "float32")
    floats[0, :4] = 0
    published = {
        "x": [weights.part(cut[0].array, (64, 333)), weights.part(cut[1].array, (64, 333), (0, 100))],
        "y": weights.part(On(floats, "float32", here).array, dtype="float32"),
    }
    source = pair.publish(published, name)
    halves = [On(np.zeros((30, 333), np.uint16), "uint16", there), On(np.zeros((34, 333), np.uint16), "uint16", there)]
    casts = {kind: On(np.zeros((9, 256), np.uint16), kind, there) for kind in ("bfloat16", "float16")}
    small, scales = On(np.zeros((9, 256), np.uint8), "float8_e4m3fn", there), On(np.zeros((1, 2), np.float32), "float32", there)
    x = [weights.part(halves[0].array, (64, 333)), weights.part(halves[1].array, (64, 333), (30, 0))]
    pair.fill(source, {"x": x}, shadow)
    assert halves[0].bytes() + halves[1].bytes() == array.tobytes()
    for kind, one in casts.items():
        pair.fill(source, {"y": weights.part(one.array, dtype=kind)}, shadow)
        assert one.bytes() == cast(floats, "float32", kind).tobytes(), kind
    columns(pair, here, there, shadow)
    if shadow != "cpu":
        quantised = {"y": weights.quantised(small.array, scales.array, dtype="float8_e4m3fn")}
        refused(hmc.UnsupportedError, lambda: pair.plan(source, quantised, shadow=shadow))
        return
    host = np.zeros((9, 256), np.uint8), np.zeros((1, 2), np.float32)
    pair.fill(source, {"y": weights.quantised(*host, dtype="float8_e4m3fn")})
    pair.fill(source, {"y": weights.quantised(small.array, scales.array, dtype="float8_e4m3fn")})
    assert host[0].any()
    assert small.bytes() == host[0].tobytes()
    assert scales.bytes() == host[1].tobytes()


def columns(pair: Pair, here: str, there: str, shadow: str) -> None:
    """Columns that are cut within the chunks of digests, so that more is read and checked, as they are and cast."""
    values = numbers((5, 4 * 1031), "float32")
    source = pair.publish(
        {"z": weights.part(On(values, "float32", here).array, dtype="float32")}, f"columns {here} {there} {shadow}"
    )
    for kind in ("float32", "bfloat16"):
        word = np.uint32 if kind == "float32" else np.uint16
        parts = [On(np.zeros((5, width), word), kind, there) for width in (1033, 4 * 1031 - 1033)]
        into = [weights.part(one.array, values.shape, (0, at), kind) for one, at in zip(parts, (0, 1033), strict=True)]
        for verify in (True, False):
            pair.fill(source, {"z": into}, shadow, verify=verify)
            wanted = values if kind == "float32" else cast(values, "float32", kind)
            assert parts[0].bytes() == wanted[:, :1033].tobytes(), (kind, verify, here, there, shadow)
            assert parts[1].bytes() == wanted[:, 1033:].tobytes(), (kind, verify, here, there, shadow)
            for one in parts:
                one.set(np.zeros(one.host.shape, word))


def main(devices: list[str]) -> None:
    _compute._COPY_BYTES = 1 << 14  # several copies of digested rows
    _publish.TASK_BYTES = _cells.TASK_BYTES = _cells.DEVICE_TASK_BYTES = 1 << 16  # several bands of digests, several tasks
    for most in (1 << 10, 1 << 14, 1 << 30):  # bands are the whole shard, each byte once
        for extents, size in (((70_001,), 4), ((3, 9001), 2), ((130, 77), 1), ((1,), 8)):
            bands = list(Grid(extents, size).bands(most))
            assert [band.at for band in bands] == [0, *np.cumsum([band.nbytes for band in bands])[:-1]]
            assert sum(band.nbytes for band in bands) == int(np.prod(extents)) * size
    pairs = list(itertools.product(devices, devices))
    for here, there in pairs:
        with contextlib.ExitStack() as end:
            pair = Pair(end)
            third = devices[-1:] if here == devices[0] else []  # neither of the source nor of the target
            for shadow in dict.fromkeys(["cpu", there, *third]):
                whole(pair, here, there, shadow)
                pieces(pair, here, there, shadow)
    print("pairs:", len(pairs))


if __name__ == "__main__":
    main(sys.argv[1:])
