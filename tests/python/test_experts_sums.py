"""Weighted sums in device memory, and hmc.experts that combines by them: simulated devices, and real ones where there are some."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_alone
from test_streams import CALLER

import hmc.testing

HERE = Path(__file__).parent


def run_layers(layers: int, devices: list[str], environment: dict[str, str]) -> str:
    result = subprocess.run(
        [sys.executable, "experts_on_devices.py", str(layers), *devices],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
        cwd=HERE,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(f"checked: {layers}") == len(devices), result.stdout
    return result.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("devices", [["cuda:0", "cuda:1"], ["rocm:1", "rocm:0"], ["cuda:0", "cuda:0", "cuda:1"]])
def test_no_row_passes_through_the_cpu_among_devices_that_reach_each_other(devices: list[str]) -> None:
    out = run_layers(6, devices, hmc.testing.environment())
    assert out.count("staged: 0\n") == 6 * len(devices), out


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "devices",
    [
        ["cuda:0", "rocm:1"],
        ["cpu", "cuda:1"],
        ["musa:0", "cuda:0", "mlu:0"],  # two of them have no kernel
        ["hygon:1", "hygon:0"],
    ],
)
def test_vendors_are_mixed(devices: list[str]) -> None:
    run_layers(4, devices, hmc.testing.environment())


@pytest.mark.timeout(300)
def test_layers_on_real_devices() -> None:
    real = [name for name in hmc.devices() if name.startswith(("cuda", "rocm"))]
    if not real:
        pytest.skip("this machine has no device for which HMC has a kernel")
    run_layers(20, (2 * real)[: max(2, min(4, len(real)))], {})


READY = """
import time
from hmc import _core

def ready(device, dtype):
    while not _core.prepare_weighted_sum(device, dtype):
        time.sleep(0.001)

def on(device, array):
    memory = hmc.Memory(array.nbytes, device)
    memory.copy_from(array)
    return memory

def back(memory):
    found = np.empty(memory.nbytes, np.uint8)
    memory.copy_to(found)
    return found
"""


@pytest.mark.timeout(120)
def test_sums_of_a_device_are_those_of_the_cpu() -> None:
    run_alone(
        READY
        + """
rng = np.random.default_rng(5)
for device in ("cuda:1", "rocm:0"):
    for dtype, size in (("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1)):
        ready(device, dtype)
        for terms in (1, 3, 8):
            for hidden in (1, 5, 64, 1030):
                rows = rng.integers(0, 256, (6 * terms, hidden * size), dtype=np.uint8)
                if size == 1:
                    rows &= 0x77  # no NaN, whose sign is free
                elif size == 2:
                    rows[:, 1::2] &= 0x3B
                else:
                    rows[:, 3::4] &= 0x3F
                weights = rng.standard_normal((6, terms)).astype(np.float32)
                for used in (None, rng.random((6, terms)) < 0.6, np.zeros((6, terms), bool)):
                    here, there = np.full(6 * hidden * size, 7, np.uint8), on(device, np.full(6 * hidden * size, 9, np.uint8))
                    _core.weighted_sum(here, rows, weights, dtype, used)
                    _core.weighted_sum(there, on(device, rows), weights, dtype, used)
                    assert np.array_equal(back(there), here), (device, dtype, terms, hidden)
                    assert used is None or used.any() or not here.any()
"""
    )


@pytest.mark.timeout(120)
def test_what_a_device_cannot_sum_is_refused() -> None:
    run_alone(
        READY
        + """
def refused(kind, *arguments):
    try:
        _core.weighted_sum(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(arguments)

weights, rows, out = np.ones((2, 3), np.float32), np.ones(24, np.uint8), np.full(8, 7, np.uint8)
for device in ("hygon:0", "mlu:0", "musa:1"):
    try:
        _core.prepare_weighted_sum(device, "bfloat16")
    except hmc.UnsupportedError:
        pass
    else:
        raise AssertionError(device)
    there = on(device, out)
    refused(hmc.UnsupportedError, there, on(device, rows), weights, "bfloat16")
    assert (back(there) == 7).all()
ready("cuda:0", "bfloat16")
there = on("cuda:0", out)
assert "cuda:0" in refused(hmc.UnsupportedError, there, rows, weights, "bfloat16")
assert "rocm:0" in refused(hmc.UnsupportedError, there, on("rocm:0", rows), weights, "bfloat16")
refused(hmc.InvalidArgumentError, there, on("cuda:0", rows[:20]), weights, "bfloat16")
refused(hmc.InvalidArgumentError, there, on("cuda:0", rows), weights, "bfloat16", np.ones((2, 2), bool))
refused(hmc.InvalidArgumentError, there, on("cuda:0", rows), weights, "int16")
assert (back(there) == 7).all()
assert _core.prepare_weighted_sum("cpu", "bfloat16")
"""
    )


@pytest.mark.timeout(120)
def test_a_failing_call_of_the_vendor_is_an_error_and_the_next_sum_works() -> None:
    run_alone(
        READY
        + """
import ctypes, os
library = ctypes.CDLL(os.environ["HMC_CUDA_LIBRARY"])
rng = np.random.default_rng(3)
ready("cuda:0", "float32")
rows, weights = rng.standard_normal((12, 33)).astype(np.float32), rng.random((4, 3), np.float32)
there, memory, wanted = on("cuda:0", rows), hmc.Memory(4 * 33 * 4, "cuda:0"), np.empty((4, 33), np.float32)
_core.weighted_sum(wanted, rows, weights, "float32")
errors = set()
calls = ["cuMemAlloc_v2", "cuCtxPushCurrent_v2", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuEventRecord", "cuEventQuery"]
for call in calls:
    memory.fill(0)
    library.hmcsim_fail(call.encode(), 1, 999)
    try:
        _core.weighted_sum(memory, there, weights, "float32")
    except hmc.HmcError as error:
        assert "cuda" in str(error) and "999" in str(error), (call, str(error))
        errors.add(call)
    library.hmcsim_reset()
    _core.weighted_sum(memory, there, weights, "float32")
    assert np.array_equal(back(memory), wanted.view(np.uint8).reshape(-1)), call
assert errors == set(calls), set(calls) - errors
"""
    )


@pytest.mark.timeout(120)
def test_until_the_kernel_is_there_the_cpu_sums_copies() -> None:
    run_alone(
        READY
        + """
from hmc.experts import _sums
from hmc.experts._memory import Counts

class NotYet:
    Memory = _core.Memory
    prepare_weighted_sum = staticmethod(lambda device, dtype: False)

    @staticmethod
    def weighted_sum(out, rows, *more):
        if rows.device != "cpu":
            raise hmc.UnsupportedError("the kernel is being compiled")
        _core.weighted_sum(out, rows, *more)

_sums._core = NotYet
rng = np.random.default_rng(8)
rows, weights = rng.standard_normal((4, 3, 33)).astype(np.float32), rng.standard_normal((4, 3)).astype(np.float32)
used = rng.random((4, 3)) < 0.7
wanted = np.empty((4, 33), np.float32)
_core.weighted_sum(wanted, rows, weights, "float32", used)
for where in ("cuda:0", "cpu"):
    counts = Counts()
    sums, out = _sums.Sums("cuda:0", "float32", counts), hmc.Memory(wanted.nbytes, where)
    assert sums.device == "cuda:0"
    assert not sums.ready()
    sums.add_up_copies(out, on("cuda:0", rows), weights, used)
    assert np.array_equal(back(out), wanted.view(np.uint8).reshape(-1)), where
    staged = rows.nbytes + (wanted.nbytes if where == "cuda:0" else 0)
    assert counts.all() == {"bytes_staged": staged, "sums_on_device": 0, "sums_on_cpu": 1}, counts.all()
"""
    )


@pytest.mark.timeout(120)
def test_a_new_array_is_written_behind_what_was_queued_before_it_was_made() -> None:
    """An allocator such as torch's gives memory that earlier kernels of the current stream still use."""
    run_alone(
        CALLER
        + """
from hmc._deadline import Deadline
from hmc.experts._arrays import Fresh, marked
hmc.devices()  # opens the library
caller, memory = Caller("cuda"), hmc.Memory(64, "cuda:0")

class Made:
    @property
    def __cuda_array_interface__(self):
        where = {"data": (memory.address, False), "stream": caller.stream}
        return {"shape": (64,), "typestr": "|u1", "version": 3, **where}

caller.hold()
made = Made()
fresh = Fresh(made, *marked(made))
try:
    fresh.wait(Deadline(0.5), "resume() waits on")
except hmc.HmcTimeoutError as error:
    assert str(error).startswith("result: its stream") and str(error).endswith("resume() waits on"), error
else:
    raise AssertionError("the stream is held")
threading.Timer(0.2, caller.gate.set).start()
fresh.wait(Deadline(30), "")
assert caller.gate.is_set()
caller.gate.clear()
caller.hold()  # later work does not count
fresh.wait(Deadline(30), "")
caller.gate.set()
caller.synchronize()
"""
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("named", ["cuda", "cuda:0", "cpu:0"])
def test_sums_are_written_into_y_however_the_device_is_named(named: str) -> None:
    run_alone(
        f"""
from hmc import _core, tensors
from hmc.experts import Buffer, _sums
memory = hmc.Memory(3 * 32, {named!r})
memory.copy_from(np.ones(24, np.float32))
x = tensors.view(memory, "float32", (3, 8))
with hmc.init(rank=0, size=1) as comm:
    with Buffer(comm, experts=1, hidden=8, tokens=3, topk=1, dtype="float32", device={named!r}) as ep:
        x2, handle = ep.dispatch(x, np.zeros((3, 1), int), np.full((3, 1), 2, np.float32), timeout=20)
        deliver, targets = _sums.Sums._deliver, []
        _sums.Sums._deliver = lambda sums, out, near: (targets.append(out is near), deliver(sums, out, near))
        y = ep.combine(x2, handle, timeout=20)
        found = np.empty(24, np.float32)
        y.memory().copy_to(found)
        assert (found == 2).all() and y.device == memory.device
        assert targets == [True], targets
        assert ep.counters()["bytes_staged"] == 0
"""
    )
