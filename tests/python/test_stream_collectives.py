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
