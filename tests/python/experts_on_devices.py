"""As a script: layers of experts among ranks on the named devices, every byte against NumPy's dense computation.

Usage: python experts_on_devices.py LAYERS DEVICE DEVICE...: one rank for each device, also "cpu". Without torch rows are HMC's.
With torch for CUDA every second layer has its rows in tensors of torch.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hmc
import hmc.experts
from hmc import _core, tensors

Array = NDArray[Any]
#: How NumPy holds a type.
HELD = {"bfloat16": np.uint16, "float16": np.float16, "float32": np.float32}


def narrow(values: Array, dtype: str) -> Array:
    """Float32 rounded to a type, to nearest even. No NaN."""
    if dtype != "bfloat16":
        return values.astype(HELD[dtype])
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def wide(stored: Array, dtype: str) -> Array:
    return (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else stored.astype(np.float32)


def expert(number: int, rows: Array, dtype: str) -> Array:
    """The results of an expert, as the type holds them."""
    return narrow(wide(rows, dtype) * np.float32((number + 2) / 7) - np.float32(number / 3), dtype)


def sent(seed: list[int], layer: dict[str, Any], tokens: int) -> tuple[Array, Array, Array]:
    """(x, ids, weights) of a rank."""
    random = np.random.default_rng(seed)
    x = narrow(random.standard_normal((tokens, layer["hidden"])).astype(np.float32), layer["dtype"])
    ids = np.argsort(random.random((tokens, layer["experts"])), axis=1)[:, : layer["topk"]].astype(np.int64)
    ids[random.random(ids.shape) < layer["none"]] = -1
    return x, ids, random.standard_normal(ids.shape).astype(np.float32)


def summed(terms: list[tuple[Array, Array]], shape: tuple[int, int], dtype: str) -> Array:
    """Of (weights by row, rows): products and sums rounded to float32 one after the other."""
    total = np.zeros(shape, np.float32)
    for weights, rows in terms:
        total = total + weights[:, None] * wide(rows, dtype)
    return narrow(total, dtype)


def dense(buffer: hmc.experts.Buffer, layer: dict[str, Any], x: Array, ids: Array, weights: Array) -> Array:
    """What combine() has to return, without ranks."""
    dtype, terms = layer["dtype"], []

    def chosen(k: int, experts: range) -> tuple[Array, Array]:
        rows = np.zeros(x.shape, HELD[dtype])
        for number in experts:
            here = ids[:, k] == number
            rows[here] = expert(number, x[here], dtype)
        inside = (ids[:, k] >= experts.start) & (ids[:, k] < experts.stop)
        return np.where(inside, weights[:, k], np.float32(0)), rows

    for experts in [buffer.experts_of(rank) for rank in range(len(buffer.alive))] if layer["once"] else [range(layer["experts"])]:
        parts = [chosen(k, experts) for k in range(ids.shape[1])]
        if layer["once"]:
            terms.append((np.ones(len(x), np.float32), summed(parts, x.shape, dtype)))
        else:
            terms = parts
    return summed(terms, x.shape, dtype)


def apply(buffer: hmc.experts.Buffer, layer: dict[str, Any], x2: Array, handle: hmc.experts.Handle) -> Array:
    """What this rank's experts make of x2; with once the sums by the order of the choices."""
    first = buffer.experts_of(buffer.rank).start
    experts = handle.experts

    def results(column: int) -> Array:
        made = np.zeros(x2.shape, HELD[layer["dtype"]])
        for local in range(len(buffer.experts_of(buffer.rank))):
            here = experts[:, column] == local
            made[here] = expert(first + local, x2[here], layer["dtype"])
        return made

    if not layer["once"]:
        return results(0)
    weights = handle.weights
    return summed([(weights[:, k], results(k)) for k in range(experts.shape[1])], x2.shape, layer["dtype"])


class Place:
    """Where a layer's rows lie: arrays there and back."""

    def __init__(self, device: str, dtype: str, of_torch: bool) -> None:
        self.device, self.dtype, self.of_torch = device, dtype, of_torch

    def put(self, array: Array) -> Any:
        if self.of_torch:
            torch = importlib.import_module("torch")
            kind = getattr(torch, self.dtype)
            if array.size == 0:
                return torch.empty(array.shape, dtype=kind, device=self.device)
            # A kernel that is still queued when the call begins.
            made = torch.from_numpy(array.reshape(-1).view(np.uint8).copy()).view(kind).to(self.device)
            return made.view(array.shape).neg().neg()
        if self.device == "cpu":
            return array
        memory = hmc.Memory(array.nbytes, self.device)
        if array.nbytes:
            memory.copy_from(array)
        return tensors.view(memory, self.dtype, array.shape)

    def get(self, array: Any) -> Array:
        if isinstance(array, np.ndarray):
            return array
        found = np.empty(array.shape, HELD[self.dtype])
        if found.size and self.of_torch:
            torch = importlib.import_module("torch")
            return array.cpu().view(torch.uint8).numpy().view(HELD[self.dtype]).reshape(found.shape).copy()
        if found.size:
            array.memory().copy_to(found)
        return found


def has_kernel(device: str, dtype: str) -> bool:
    """Whether the device sums; at the latest once a run-time compiler has made its kernel."""
    until = time.monotonic() + 120
    try:
        while not _core.prepare_weighted_sum(device, dtype):
            assert time.monotonic() < until, device
            time.sleep(0.001)
    except hmc.UnsupportedError:
        return False
    return device != "cpu"


def run_layer(comm: hmc.Communicator, number: int, device: str, of_torch: bool) -> None:
    """One Buffer: some rounds of dispatch and combine."""
    random = np.random.default_rng([number])
    layer = {
        "experts": int(random.integers(3, 14)) + comm.size,
        "hidden": int(random.choice([1, 7, 8, 33, 1030, 7168])),
        "topk": int(random.integers(1, 4)),
        "dtype": str(random.choice(list(HELD))),
        "once": bool(random.integers(2)),
    }
    computes, place = has_kernel(device, layer["dtype"]), Place(device, layer["dtype"], of_torch)
    alone = comm.context.counters().get("bytes_staged", 0)
    with hmc.experts.Buffer(comm, tokens=19, **layer, device=device, timeout=60) as buffer:
        layer["none"] = float(random.choice([0, 0.3]))
        for turn in range(5):
            counts = random.choice([0, 1, 19, 8], comm.size)

            def of_rank(rank: int, turn: int = turn, counts: Any = counts) -> tuple[Array, Array, Array]:
                return sent([number, turn, rank], layer, int(counts[rank]))

            x, ids, weights = of_rank(comm.rank)
            x2, handle = buffer.dispatch(place.put(x), ids, weights, timeout=60)
            found = place.get(x2)
            for row, (rank, token) in enumerate(handle.sources):
                assert np.array_equal(found[row], of_rank(int(rank))[0][int(token)]), (number, turn, row)
            made = apply(buffer, layer, found, handle)
            results = buffer.results(handle)
            if turn % 2 == 0 and device != "cpu" and made.size:
                if of_torch:
                    results.copy_(place.put(made))
                else:
                    results.memory().copy_from(made)
            else:
                results = place.put(made)
            y = buffer.combine(results, handle, timeout=60)
            assert np.array_equal(place.get(y).view(np.uint8), dense(buffer, layer, x, ids, weights).view(np.uint8)), (number, turn)
            assert tuple(y.shape) == x.shape
        counted = buffer.counters()
        busy = counted["sums_on_device"] + counted["sums_on_cpu"]
        assert counted["sums_on_cpu"] == (0 if computes else busy), (device, counted)
        # Nothing passes through the CPU but what it sums for a device.
        assert (counted["bytes_staged"] > 0) == (device != "cpu" and not computes and busy > 0), (device, counted)
        comm.barrier(timeout=60)
    print("staged:", comm.context.counters().get("bytes_staged", 0) - alone)


def work(layers: int, devices: list[str]) -> None:
    device = devices[int(os.environ["HMC_RANK"])]
    torch = sys.modules.get("torch") if not device.startswith("cuda") else _torch()
    if torch is not None:
        torch.cuda.set_device(device)
    with hmc.init() as comm:
        for number in range(layers):
            run_layer(comm, number, device, torch is not None and number % 2 == 1)
    print("checked:", layers)


def _torch() -> Any:
    """None without torch, where it finds no card, and beside simulated devices, whose memory it does not know."""
    if "HMC_CUDA_LIBRARY" in os.environ:
        return None
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


if __name__ == "__main__":
    job = importlib.import_module(Path(__file__).stem).work  # a child imports it by name
    hmc.spawn(job, len(sys.argv[2:]), int(sys.argv[1]), sys.argv[2:], timeout=280)
