"""Barriers: monitored ones name the ranks that are missing, others have a deadline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import hmc
from hmc.torch._calls import Calls
from hmc.torch._shared import Shared

MONITORED = """
import time
from datetime import timedelta
rank, size = start()
world = dist.group.WORLD

def barrier(seconds, wait_all_ranks):
    # Before 2.14 torch's own function has it for gloo alone.
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
        dist.monitored_barrier(timeout=timedelta(seconds=seconds), wait_all_ranks=wait_all_ranks)
    else:
        world.monitored_barrier(timedelta(seconds=seconds), wait_all_ranks)

for _ in range(3):
    barrier(60, False)
for wait_all_ranks in (False, True):
    dist.barrier()
    if rank == 0:  # rank 1 has come
        until = time.monotonic() + 60
        while not world.communicator.context.counters()["messages.unread"] and time.monotonic() < until:
            time.sleep(0.001)
    if rank < 2:
        began = time.monotonic()
        try:
            barrier(1, wait_all_ranks)
        except hmc.HmcTimeoutError as error:
            assert 0.9 < time.monotonic() - began < 30
            if rank == 0:
                assert ("ranks 2, 3" if wait_all_ranks else "rank 2 ") in str(error), error
            else:
                assert "rank 0" in str(error), error
        else:
            raise SystemExit("it came back")
    dist.barrier()
    if rank >= 2:
        world._barriers += 1  # they missed one; as many calls on every rank as before
barrier(60, True)
dist.destroy_process_group()
"""


def test_monitored_barrier_names_who_is_missing(run_torch: Callable[..., list[str]]) -> None:
    run_torch(MONITORED, ranks=4)


class _LateWork:
    """A receive whose message comes after it was found missing."""

    done = False

    def wait(self, timeout: float) -> None:
        raise hmc.HmcTimeoutError("not complete")

    def cancel(self) -> None:
        raise hmc.InvalidArgumentError("the operation is already complete")


class _Late:
    """A Communicator of two ranks with such receives."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def irecv(self, array: Any, rank: int, tag: int) -> _LateWork:
        return _LateWork()

    def send(self, array: Any, rank: int, tag: int, timeout: float) -> None:
        pass


@pytest.mark.parametrize(("rank", "said"), [(0, "rank 1 did not come"), (1, "no answer from rank 0")])
def test_a_late_message_leaves_monitored_barrier_its_timeout(monkeypatch: pytest.MonkeyPatch, rank: int, said: str) -> None:
    def wait_all(works: list[_LateWork], timeout: float) -> None:
        works[0].wait(timeout)

    monkeypatch.setattr(hmc, "wait_all", wait_all)
    calls = Calls()
    communicator: Any = _Late(rank)
    calls._start(Shared(communicator, 1.0))
    with pytest.raises(hmc.HmcTimeoutError, match=said):
        calls.monitored_barrier(timedelta(seconds=1))


def test_a_barrier_with_a_deadline(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        import time
        from datetime import timedelta
        rank, size = start()
        opts = dist.BarrierOptions()
        opts.timeout = timedelta(seconds=0.5)
        pair = dist.new_group([0, 1])
        if rank == 0:
            began = time.monotonic()
            try:
                pair.barrier(opts).wait()
            except hmc.HmcTimeoutError:
                assert 0.4 < time.monotonic() - began < 20
            else:
                raise SystemExit("it came back")
        dist.barrier()
        """
    )
