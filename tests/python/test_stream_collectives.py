"""Order of collectives behind a caller's stream, with simulated devices: by a kernel over mapped memory, and by messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_streams import job


@pytest.mark.parametrize("other", ["cuda:1", "cuda:0", "cpu"])
@pytest.mark.parametrize("size", [100, 300_000])
def test_a_collective_stands_between_what_a_stream_has_and_gets(run_job: Callable[..., str], other: str, size: int) -> None:
    job(
        run_job,
        "cuda",
        other,
        f"""
size = {size}
with hmc.init() as comm:
    buf = comm.buffer(size, device="cuda:0" if comm.rank == 0 else target)
    buf.memory.fill(1)
    comm.all_reduce(buf, dtype="uint8", timeout=30)
    assert (read(buf) == 2).all()
    if comm.rank == 0:
        caller = Caller(vendor)
        host = np.zeros(size, np.uint8)
        for value in (5, 9):
            caller.gate.clear()
            caller.hold()
            caller.fill(address_of(buf), value, size)
            work = comm.iall_reduce(buf, dtype="uint8", stream=caller.stream)
            caller.copy_out(host, address_of(buf))
            time.sleep(0.1)
            assert not work.done
            caller.gate.set()
            caller.synchronize()
            assert (host == value + 3).all()
            work.wait(30)
    else:
        for _ in range(2):
            buf.memory.fill(3)
            comm.iall_reduce(buf, dtype="uint8").wait(30)
    comm.barrier(timeout=30)
    mapped = comm.context.counters().get("mapped.count", 0)
    assert mapped == (3 if target == "cuda:1" else 0), mapped
""",
    )


@pytest.mark.parametrize("other", ["cuda:1", "cpu"])
@pytest.mark.parametrize("size", [100, 300_000])
def test_blocks_are_handed_on_in_the_order_of_a_stream(run_job: Callable[..., str], other: str, size: int) -> None:
    job(
        run_job,
        "cuda",
        other,
        f"""
size = {size}
with hmc.init() as comm:
    device = "cuda:0" if comm.rank == 0 else target
    out, inp = (comm.buffer(2 * size, device=device) for _ in range(2))
    for name in ("iall_to_all", "iall_to_all_v"):
        counts = ((out, [size, size], inp, [size, size]) if name == "iall_to_all_v" else (out, inp))
        if comm.rank == 0:
            caller = Caller(vendor)
            host = np.zeros(2 * size, np.uint8)
            for value in (5, 9):
                caller.gate.clear()
                caller.hold()
                caller.fill(address_of(inp), value, 2 * size)
                work = getattr(comm, name)(*counts, stream=caller.stream)
                caller.copy_out(host, address_of(out))
                time.sleep(0.1)
                assert not work.done
                caller.gate.set()
                caller.synchronize()
                assert (host[:size] == value).all() and (host[size:] == 3).all()
                work.wait(30)
        else:
            for value in (5, 9):
                inp.memory.fill(3)
                getattr(comm, name)(*counts).wait(30)
                assert (read(out)[:size] == value).all()
    comm.barrier(timeout=30)
    mapped = comm.context.counters().get("mapped.count", 0)
    assert mapped == (2 if target == "cuda:1" else 0), mapped
""",
    )


def test_only_the_first_call_waits_for_other_ranks(run_job: Callable[..., str]) -> None:
    """Of a rank whose devices are not mapped, since another one passes CPU memory: no later call waits for that one."""
    job(
        run_job,
        "cuda",
        "cpu",
        """
with hmc.init() as comm:
    buf = comm.buffer(1000, device="cuda:0" if comm.rank == 0 else target)
    caller = Caller(vendor) if comm.rank == 0 else None
    go = np.zeros(1)
    took = []  # of a call that waits, 10 s; a loaded host may hold up some call that does not
    for call in range(4):
        buf.memory.fill(3 + comm.rank)
        if comm.rank == 0:
            work = comm.iall_reduce(buf, dtype="uint8", stream=caller.stream)
            if call > 0:
                comm.send(go, 1, timeout=50)
        else:
            if call > 0:
                started = time.monotonic()
                comm.recv(go, 0, timeout=50)
                took.append(time.monotonic() - started)
            work = comm.iall_reduce(buf, dtype="uint8")
        work.wait(50)
        assert (read(buf) == 7).all()
    assert comm.rank == 0 or min(took) < 6, took
""",
    )


def test_memory_is_freed_while_the_host_holds_a_stream(run_job: Callable[..., str]) -> None:
    """A vendor's free and unpinning wait for the device: rank 0 for its stream, and that for a call that rank 1 makes later."""
    job(
        run_job,
        "cuda",
        "same",
        """
size = 300_000
with hmc.init() as comm:
    out, inp = (comm.buffer(2 * size, device=f"cuda:{comm.rank}") for _ in range(2))
    go = np.zeros(1)
    for value in (5, 9):
        inp.memory.fill(value + comm.rank)
        other, pinned = hmc.Memory(8 << 20, device=f"cuda:{comm.rank}"), hmc.Memory(8 << 20)
        other.copy_from(pinned)
        if comm.rank == 0:
            work = comm.iall_to_all(out, inp, algorithm="direct", stream=Caller(vendor).stream)
            del other
            del pinned
            comm.send(go, 1, timeout=30)
        else:
            comm.recv(go, 0, timeout=30)
            work = comm.iall_to_all(out, inp, algorithm="direct")
        work.wait(30)
        assert (read(out)[:size] == value).all() and (read(out)[size:] == value + 1).all()
""",
    )


def test_cpu_memory_with_a_stream_is_refused(run_job: Callable[..., str]) -> None:
    run_job(
        """
with hmc.init() as comm:
    x, y = np.ones(4, np.float32), np.ones(8, np.float32)
    calls = (
        lambda: comm.iall_reduce(x, stream=5),
        lambda: comm.ireduce_scatter(x, y, stream=5),
        lambda: comm.ireduce(x, root=0, stream=5),
        lambda: comm.iall_gather(y, x, stream=5),
        lambda: comm.iall_to_all(y, y + 1, stream=5),
        lambda: comm.ibroadcast(x, stream=5),
        lambda: comm.igather(y, x, stream=5),
        lambda: comm.iscatter(x, y, stream=5),
    )
    for call in calls:
        try:
            call()
        except hmc.InvalidArgumentError as error:
            assert "stream" in str(error)
        else:
            raise AssertionError("accepted")
    comm.all_reduce(x, timeout=30)
    assert (x == 2).all()
"""
    )


def test_memory_is_freed_while_a_kernel_waits_for_another_rank(run_job: Callable[..., str]) -> None:
    """A vendor's free waits for the device: rank 1 would wait for rank 0, which goes on only once rank 1 has sent something."""
    job(
        run_job,
        "cuda",
        "same",
        """
size = 100_000
with hmc.init() as comm:
    device = f"cuda:{comm.rank}"
    buf = comm.buffer(size, device=device)
    buf.memory.fill(1)
    comm.all_reduce(buf, dtype="uint8", timeout=30)
    caller = Caller(vendor)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    context = ctypes.c_void_p()
    caller.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), comm.rank)
    caller.call("cuCtxSetCurrent", context)
    caller.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    before = free.value
    other = hmc.Memory(8 << 20, device=device)
    go = np.zeros(1)
    if comm.rank == 0:
        caller.hold()
        work = comm.iall_reduce(buf, dtype="uint8", stream=caller.stream)
        comm.recv(go, 1, tag=5, timeout=30)
        caller.gate.set()
        work.wait(30)
    else:
        work = comm.iall_reduce(buf, dtype="uint8")
        time.sleep(0.5)  # the kernel has started
        del other
        comm.send(go, 0, tag=5, timeout=30)
        work.wait(30)
        end = time.monotonic() + 20
        while free.value != before:
            assert time.monotonic() < end, (free.value, before)
            time.sleep(0.01)
            caller.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert (read(buf) == 4).all()
    assert comm.context.counters()["mapped.count"] == 2
    comm.barrier(timeout=30)
""",
    )


@pytest.mark.parametrize("member", ["cpu", "cuda:0"])  # of a CPU a batch carries small calls out together
def test_a_batch_whose_stream_is_late_ends_the_group(run_job: Callable[..., str], member: str) -> None:
    """Else the next collective of this rank would meet the batch of the others."""
    job(
        run_job,
        "cuda",
        member,
        """
class Array:  # as a framework hands it out
    def __init__(self, buf, stream):
        self.__cuda_array_interface__ = {
            "shape": (len(buf),), "typestr": "|u1", "data": (address_of(buf), False), "version": 3, "stream": stream
        }

comm = hmc.init(devices=[target])
buffers = [comm.buffer(1000, f"{vendor}:0") for _ in range(2)]
caller = Caller(vendor)
comm.barrier(timeout=30)
if comm.rank == 0:
    caller.hold()
try:
    with comm.batch(timeout=0.5 if comm.rank == 0 else 50):
        for buf in buffers:
            comm.all_reduce(Array(buf, caller.stream), dtype="uint8")
except hmc.HmcTimeoutError as error:
    assert "streams" in str(error), error
    assert comm.rank == 0 or "rank 0" in str(error), error
else:
    raise SystemExit("it succeeded")
try:
    comm.all_reduce(buffers[0], dtype="uint8", timeout=30)
except hmc.HmcError as error:
    assert "takes no more collectives" in str(error), error
else:
    raise SystemExit("it succeeded")
caller.gate.set()
caller.synchronize()
""",
    )


def test_ctrl_c_ends_the_start_of_a_batch_that_waits_for_a_stream(run_job: Callable[..., str]) -> None:
    job(
        run_job,
        "cuda",
        "cpu",
        """
import signal

class Array:
    def __init__(self, buf, stream):
        self.__cuda_array_interface__ = {
            "shape": (len(buf),), "typestr": "|u1", "data": (address_of(buf), False), "version": 3, "stream": stream
        }

comm = hmc.init()
alone = comm.split(comm.rank)  # what is interrupted before it has begun is discarded, of which other ranks are not told
buffers = [comm.buffer(1000, f"{vendor}:0") for _ in range(2)]
caller = Caller(vendor)
caller.hold()
try:
    with alone.batch() as batch:
        for buf in buffers:
            alone.all_reduce(Array(buf, caller.stream), dtype="uint8")
        threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
        batch.start()
except KeyboardInterrupt:
    pass
else:
    raise SystemExit("not interrupted")
caller.gate.set()
caller.synchronize()
comm.barrier(timeout=60)
""",
    )


def test_ctrl_c_ends_the_join_of_a_groups_first_collective(run_job: Callable[..., str]) -> None:
    # It waits up to 10 s for the other rank's call: only then it is known who carries the collective out.
    job(
        run_job,
        "cuda",
        "cuda:1",
        """
import signal

comm = hmc.init()
buf = comm.buffer(1000, device="cuda:0" if comm.rank == 0 else target)
told = np.zeros(1)
for way in ("stream=", "join"):
    group = comm.split(0, timeout=30)
    if comm.rank == 0:
        caller = Caller(vendor)
        try:
            threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
            if way == "join":
                work = group.iall_reduce(buf, dtype="uint8")
                work.join(caller.stream, "cuda:0")
            else:
                group.iall_reduce(buf, dtype="uint8", stream=caller.stream)
            time.sleep(30)
        except KeyboardInterrupt:
            comm.send(told, 1, timeout=30)
    else:
        comm.recv(told, 0, timeout=6)
        group.iall_reduce(buf, dtype="uint8").wait(30)
    comm.barrier(timeout=60)
""",
    )
