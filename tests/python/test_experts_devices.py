"""hmc.experts with rows on simulated devices: a Buffer on a device, on another vendor's, beside ranks on the CPU."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from survivors import run_survivors
from test_experts import PRELUDE
from test_experts_losses import POINTS, job
from test_streams import CALLER

import hmc.testing

ROWS = """
import os
from hmc import tensors

def on(device, array):
    if device == "cpu":
        return array
    memory = hmc.Memory(array.nbytes, device)
    if array.nbytes:
        memory.copy_from(array)
    return tensors.view(memory, array.dtype, array.shape)

def host(array):
    if isinstance(array, np.ndarray):
        return array
    found = np.empty(array.shape, np.float32)
    if found.size:
        array.memory().copy_to(found)
    return found

with hmc.init() as comm:
    own, given = os.environ["WHERE"].split(",")[comm.rank].split("/")
    with buffer_of(comm, device=own, once=ONCE) as ep:
        for number, tokens in enumerate((17, 0, 5, 1, 17)):
            x = rows((number, comm.rank), tokens, 33)
            ids, weights = routing((number, comm.rank), tokens, 5, 13)
            x2, handle = ep.dispatch(on(given, x), on(given, ids), on(given, weights), timeout=20)
            assert (x2.device if isinstance(x2, tensors.Tensor) else "cpu") == (own if own != "cpu" else given)
            of_rows = host(x2)
            for row, (rank, token) in enumerate(handle.sources):
                sent = rows((number, int(rank)), (17, 0, 5, 1, 17)[number], 33)
                assert np.array_equal(of_rows[row], sent[token]), (row, rank, token)
            made = apply(ep, of_rows, handle)
            results = ep.results(handle)
            if own == "cpu":
                results = on(given, made)
            elif made.size:
                assert results.memory().address == ep._fabric.results[number % 2].buffer.memory.address
                results.memory().copy_from(made)
            y = ep.combine(results, handle, timeout=20)
            check_sum(ep, host(y), x, ids, weights, handle)
        counted = ep.counters()
        assert counted["sums_on_device" if own.startswith(("cuda", "rocm")) else "sums_on_cpu"] > 0, counted
        assert counted["bytes_staged"] > 0 or own == given, counted
print("done")
"""


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize(
    "where",
    [
        "cuda:0/cuda:0,rocm:1/rocm:1",  # rows on two vendors, those of the caller there too
        "mlu:0/cpu,cpu/musa:0",  # a rank on the CPU; the caller's rows elsewhere
        "hygon:0/hygon:1,hygon:1/cpu",
    ],
)
def test_rows_on_devices(run_job: Callable[..., str], where: str, once: bool) -> None:
    source = PRELUDE + f"ONCE = {once}\n" + textwrap.dedent(ROWS)
    assert run_job(source, 2, environment={**hmc.testing.environment(), "WHERE": where}).count("done") == 2


def test_rows_over_tcp_are_copied_on_the_device(run_job: Callable[..., str]) -> None:
    """Each row travels once, and its copies for further experts are made on the device."""
    environment = {**hmc.testing.environment(), "HMC_TRANSPORTS": "tcp,staging", "HMC_STAGING_SHARED": "0"}
    source = PRELUDE + "ONCE = False\n" + textwrap.dedent(ROWS)
    assert run_job(source, 2, environment={**environment, "WHERE": "cuda:0/cuda:0,musa:1/cpu"}).count("done") == 2


@pytest.mark.parametrize("point", ["while it reads rows", "before it acknowledges"])
def test_a_rank_on_a_device_dies(point: str, tmp_path: Path) -> None:
    """The rows of a lost rank are zero on the devices of the others, and the sums go on without it."""
    source = f"""
    os.environ.update(hmc.testing.environment("cuda", "rocm"))
    comm = hmc.init(timeout=30)
    device = ["cuda:0", "rocm:1", "cuda:1"][comm.rank]
    ep = buffer_of(comm, device=device)
    if comm.rank == 1:
        {POINTS[point]}
    for number in range(9):
        x = rows((number, comm.rank), 17, 33)
        ids, weights = routing((number, comm.rank), 17, 5, 13)
        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
        assert x2.device == device
        found = np.empty(x2.shape, np.float32)
        x2.memory().copy_to(found)
        for row, (rank, token) in enumerate(handle.sources):
            sent = rows((number, int(rank)), 17, 33)[token]
            gone = not ep.alive[rank] and not found[row].any()
            assert gone or np.array_equal(found[row], sent), (number, row)
        y = ep.combine(apply(ep, found, handle), handle, timeout=20)
        check_sum(ep, y, x, ids, weights, handle)
    assert ep.alive == (True, False, True)
    ep.close()
    end()
    """
    run_survivors(job(source, "shm,ipc,staging"), 3, [0, 2], tmp_path)


def test_rows_are_read_behind_their_stream(run_job: Callable[..., str]) -> None:
    source = """
    hmc.devices()  # opens the library
    caller = Caller("cuda")
    class Rows:
        shape, dtype = (17, 33), np.dtype(np.float32)
        memory = hmc.Memory(17 * 33 * 4, "cuda:0")

        @property
        def __cuda_array_interface__(self):
            where = {"data": (self.memory.address, False), "stream": caller.stream}
            return {"shape": self.shape, "typestr": "<f4", "version": 3, **where}

    with hmc.init() as comm:
        for device in ("cpu", "cuda:1"):
            with buffer_of(comm, device=device) as ep:
                x = Rows()
                x.memory.fill(0)
                ids, weights = routing((0, comm.rank), 17, 5, 13)
                caller.gate.clear()
                caller.hold()
                caller.fill(x.memory.address, 0x40, 17 * 33 * 4)
                threading.Timer(0.2, caller.gate.set).start()
                x2, handle = ep.dispatch(x, ids, weights, timeout=20)
                found = np.empty(x2.shape, np.float32)
                x2.memory().copy_to(found)
                assert (found.view(np.uint8) == 0x40).all() and handle.counts.sum() == len(found) > 0
                ep.release(handle, timeout=20)
    print("done")
    """
    source = CALLER + PRELUDE + textwrap.dedent(source)
    assert run_job(source, 2, environment=hmc.testing.environment("cuda")).count("done") == 2


def test_a_stream_that_is_stuck_is_a_timeout(run_job: Callable[..., str]) -> None:
    source = """
    hmc.devices()  # opens the library
    caller = Caller("cuda")
    class Rows:
        dtype = np.dtype(np.float32)

        def __init__(self, count):
            self.shape = (count, 33)
            self.memory = hmc.Memory(count * 33 * 4, "cuda:0")

        @property
        def __cuda_array_interface__(self):
            where = {"data": (self.memory.address, False), "stream": caller.stream}
            return {"shape": self.shape, "typestr": "<f4", "version": 3, **where}

    def behind(call):
        caller.gate.clear()
        caller.hold()
        try:
            call(timeout=1)
        except hmc.HmcTimeoutError as error:
            found = str(error)
        caller.gate.set()
        caller.synchronize()
        return found

    with hmc.init() as comm, buffer_of(comm) as ep:
        ids, weights = routing((0, comm.rank), 17, 5, 13)
        x = Rows(17)
        x.memory.fill(1)
        assert behind(lambda timeout: ep.dispatch(x, ids, weights, timeout=timeout)).startswith("x: its stream")
        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
        made = Rows(x2.shape[0])
        made.memory.fill(0)
        assert behind(lambda timeout: ep.combine(made, handle, timeout=timeout)).startswith("results: its stream")
        y = ep.resume(timeout=20)
        assert y.shape == (17, 33)
    print("done")
    """
    source = CALLER + PRELUDE + textwrap.dedent(source)
    assert run_job(source, 2, environment=hmc.testing.environment("cuda")).count("done") == 2


def test_rows_that_are_still_copied_at_the_deadline(run_job: Callable[..., str]) -> None:
    """resume() goes on, and close() waits for the device."""
    source = """
    from hmc import _core
    late, wait = [], _core.ExpertDispatch.wait

    def slow(self, ranks, timeout):
        if comm.rank in ranks and late:
            return [(comm.rank, late.pop())]
        return wait(self, ranks, timeout)

    _core.ExpertDispatch.wait = slow
    with hmc.init() as comm:
        ep = buffer_of(comm, device=f"cuda:{comm.rank}")
        for number in range(4):
            x = rows((number, comm.rank), 17, 33)
            ids, weights = routing((number, comm.rank), 17, 5, 13)
            late.extend([hmc.HmcTimeoutError("the kernel")] * number)
            for again in range(number):
                call = ep.resume if again else lambda timeout: ep.dispatch(x, ids, weights, timeout=timeout)
                assert "own rows were not there" in refused(hmc.HmcTimeoutError, call, timeout=20)
            x2, handle = ep.resume(timeout=20) if number else ep.dispatch(x, ids, weights, timeout=20)
            found = np.empty(x2.shape, np.float32)
            x2.memory().copy_to(found)
            for row, (rank, token) in enumerate(handle.sources):
                assert np.array_equal(found[row], rows((number, int(rank)), 17, 33)[token])
            y = ep.combine(apply(ep, found, handle), handle, timeout=20)
            check_sum(ep, y, x, ids, weights, handle)
        late.extend([hmc.HmcTimeoutError("the kernel")] * 2)
        refused(hmc.HmcTimeoutError, ep.dispatch, x, ids, weights, timeout=20)
        assert "still being copied" in refused(hmc.HmcTimeoutError, ep.close, timeout=20)
        assert not late
        ep.close(timeout=20)
    print("done")
    """
    source = PRELUDE + textwrap.dedent(source)
    assert run_job(source, 2, environment=hmc.testing.environment("cuda")).count("done") == 2
