"""A receive that is withdrawn while its message moves leaves the message to the next receive, through every door and transport."""

from __future__ import annotations

from collections.abc import Callable

import pytest

WAYS = pytest.mark.parametrize(("transport", "ptrace"), [("shm", "1"), ("shm", "0"), ("tcp", "1")])

# Rank 1 receives what rank 0 sends, with deadlines and cancels in the middle; `door` has send, recv and irecv.
PRELUDE = """
import asyncio, random, time
SIZE = 24_000_001
ROUNDS = 12

with hmc.init() as comm:
    member = comm
    chance = random.Random(5)

    def send_all():
        for i in range(ROUNDS):
            large, small = pattern(SIZE, i), pattern(1000, 100 + i)
            for work in [member.isend(large, 1, 3), member.isend(small, 1, 3)]:
                work.wait(50)

    def check(i, recv, left):
        last = np.zeros(SIZE, np.uint8)
        assert recv(last).bytes == SIZE, f"round {i}: the large message was overtaken"
        assert np.array_equal(last, pattern(SIZE, i)), f"round {i}"
        assert recv(last).bytes == 1000 and np.array_equal(last[:1000], pattern(1000, 100 + i)), f"round {i}"
        for array in left:
            assert not array.any(), f"round {i}: written after its end"
"""


@WAYS
def test_a_deadline_loses_no_message(run_job: Callable[..., str], transport: str, ptrace: str) -> None:
    out = run_job(
        PRELUDE
        + """
    if comm.rank == 0:
        send_all()
    else:
        withdrawn = 0
        for i in range(ROUNDS):
            left = []
            for _ in range(3):
                array = np.zeros(SIZE, np.uint8)
                try:
                    assert member.recv(array, 0, 3, timeout=chance.uniform(0, 0.004)).bytes == SIZE
                except hmc.HmcTimeoutError as error:
                    assert "nothing more is read or written" in str(error), error
                    withdrawn += 1
                    array[:] = 0
                    left.append(array)
                else:
                    assert np.array_equal(array, pattern(SIZE, i))
                    break
            if len(left) == 3:
                check(i, lambda array: member.recv(array, 0, 3, timeout=50), left)
            else:
                assert member.recv(array, 0, 3, timeout=50).bytes == 1000
        print("withdrawn", withdrawn)
    comm.barrier(timeout=50)
""",
        environment={"HMC_TRANSPORTS": transport, "HMC_SHM_PTRACE": ptrace},
    )
    assert int(out.split("withdrawn")[1].split()[0]) > 0


@WAYS
def test_a_cancelled_await_loses_no_message(run_job: Callable[..., str], transport: str, ptrace: str) -> None:
    run_job(
        PRELUDE
        + """
    async def receive_all():
        for i in range(ROUNDS):
            array = np.zeros(SIZE, np.uint8)
            work = member.irecv(array, 0, 3)

            async def receive():
                return await work

            task = asyncio.ensure_future(receive())
            end = time.monotonic() + chance.uniform(0, 0.01)
            while time.monotonic() < end:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert work.done
            if isinstance(work.error(), hmc.HmcError):
                array[:] = 0
                check(i, lambda array: member.recv(array, 0, 3, timeout=50), [array])
            else:
                assert work.info.bytes == SIZE and np.array_equal(array, pattern(SIZE, i))
                assert member.recv(array, 0, 3, timeout=50).bytes == 1000

    if comm.rank == 0:
        send_all()
    else:
        asyncio.run(receive_all())
    comm.barrier(timeout=50)
""",
        environment={"HMC_TRANSPORTS": transport, "HMC_SHM_PTRACE": ptrace},
    )
