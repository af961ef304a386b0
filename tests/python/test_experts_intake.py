"""What hmc.experts takes from arrays of a device, behind the streams that these are produced on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
from commands import run_alone
from test_experts import PRELUDE
from test_streams import CALLER

import hmc.testing

# Every token goes to expert 1, with a weight that is a power of 2, and has equal elements.
ARRAYS = """
class OnStream:
    def __init__(self, shape, typestr):
        self.shape, self.dtype = shape, np.dtype(typestr)
        self.memory = hmc.Memory(int(np.prod(shape)) * self.dtype.itemsize, caller.device)
        self.memory.fill(0xee)

    @property
    def __cuda_array_interface__(self):
        where = {"data": (self.memory.address, False), "stream": caller.stream}
        return {"shape": self.shape, "typestr": self.dtype.str, "version": 3, **where}

def behind_the_stream():
    x, ids, weights = OnStream((17, 33), "<f4"), OnStream((17, 1), IDS), OnStream((17, 1), "<f4")
    caller.gate.clear()
    caller.hold()
    caller.fill(x.memory.address, 0x40, x.memory.nbytes)
    caller.fill(ids.memory.address, 0, ids.memory.nbytes)
    caller.fill(weights.memory.address, 0x40, weights.memory.nbytes)
    return x, ids, weights

THREE = np.full(1, 0x40404040, np.uint32).view(np.float32)[0]
"""


@pytest.mark.parametrize("ids", ["|i1", "<i4", "<u8"])
@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_arrays_are_read_behind_their_stream(run_job: Callable[..., str], vendor: str, ids: str) -> None:
    source = f"""
    IDS = {ids!r}
    hmc.devices()  # opens the library
    caller = Caller({vendor!r})
    caller.device = "{vendor}:0"
    with hmc.init() as comm, buffer_of(comm, device="{vendor}:0", topk=1) as ep:
        kept = []  # to free memory of a device waits for its streams
        for number in range(4):
            x, ids, weights = behind_the_stream()
            kept.append((x, ids, weights))
            threading.Timer(0.1, caller.gate.set).start()
            x2, handle = ep.dispatch(x, ids, weights, timeout=50)
            found = on_host(x2)
            assert (found == THREE).all() and len(found) == (34 if comm.rank == 0 else 0)
            y = on_host(ep.combine(found, handle, timeout=50))
            assert (y == THREE * THREE).all() and y.shape == (17, 33)
        assert comm.context.counters()["bytes_staged"] == 0
    print("done")
    """
    source = CALLER + PRELUDE + ARRAYS + textwrap.dedent(source)
    assert run_job(source, 2, environment=hmc.testing.environment(vendor)).count("done") == 2


def test_copies_that_a_deadline_left_behind_are_over_before_the_next_ones(run_job: Callable[..., str]) -> None:
    source = """
    IDS = "<i4"
    hmc.devices()  # opens the library
    caller = Caller("cuda")
    caller.device = "cuda:0"
    with hmc.init() as comm, buffer_of(comm, device="cuda:0", topk=1) as ep:
        arrays = behind_the_stream()
        message = refused(hmc.HmcTimeoutError, ep.dispatch, *arrays, timeout=0.3)
        assert message.startswith("topk_ids and topk_weights and x: its stream"), message
        x = rows((0, comm.rank), 17, 33)
        ids, weights = np.ones((17, 1), np.int64), np.full((17, 1), 2, np.float32)
        message = refused(hmc.HmcTimeoutError, ep.dispatch, x, ids, weights, timeout=0.3)
        assert message.startswith("topk_ids and topk_weights and x: its stream"), message
        threading.Timer(0.1, caller.gate.set).start()
        x2, handle = ep.dispatch(x, ids, weights, timeout=50)
        y = ep.combine(on_host(x2), handle, timeout=50)
        assert np.array_equal(y, 2 * x)
    print("done")
    """
    source = CALLER + PRELUDE + ARRAYS + textwrap.dedent(source)
    assert run_job(source, 2, environment=hmc.testing.environment("cuda")).count("done") == 2


def test_close_waits_for_copies_that_a_deadline_left_behind(run_job: Callable[..., str]) -> None:
    source = """
    IDS = "<i4"
    hmc.devices()  # opens the library
    caller = Caller("cuda")
    caller.device = "cuda:0"
    with hmc.init() as comm:
        ep = buffer_of(comm, device="cuda:0", topk=1)
        arrays = behind_the_stream()
        refused(hmc.HmcTimeoutError, ep.dispatch, *arrays, timeout=0.3)
        message = refused(hmc.HmcTimeoutError, ep.close, timeout=0.3)
        assert "its stream has not come so far" in message and "close() again" in message, message
        caller.gate.set()
        ep.close(timeout=50)
        comm.barrier(timeout=50)
    print("done")
    """
    source = CALLER + PRELUDE + ARRAYS + textwrap.dedent(source)
    assert run_job(source, 2, environment=hmc.testing.environment("cuda")).count("done") == 2


@pytest.mark.timeout(120)
def test_copies_are_queued_where_the_stream_is_known() -> None:
    run_alone(
        CALLER
        + ARRAYS
        + """
from hmc import _core
hmc.devices()
caller = Caller("cuda")
caller.device = "cuda:0"
array = OnStream((16,), "<f4")
host, near, far = hmc.Memory(64), hmc.Memory(64, "cuda:0"), hmc.Memory(64, "rocm:0")
queued, marks, error = _core.queue_copies([(array, host), (array, near), (array, far), (array.memory, host)])
assert queued == [True, True, False, False] and len(marks) == 1 and error is None
while not marks[0].reached:
    time.sleep(0.001)
found = np.empty(64, np.uint8)
near.copy_to(found)
assert (found == 0xEE).all() and (host.numpy() == 0xEE).all()
try:
    _core.queue_copies([(array, host), (array, host[:63])])
except hmc.InvalidArgumentError as error:
    assert "64 bytes into 63" in str(error), error
else:
    raise AssertionError("sizes differ")
assert _core.queue_copies([]) == ([], [], None)
"""
    )
