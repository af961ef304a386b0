"""hmc.experts reads rows and results in the other ranks' memory, on the CPU and on devices, whatever those ranks do meanwhile."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from survivors import PRELUDE as SURVIVORS
from survivors import run_survivors

WHILE_ADDING_UP = """
import hmc.experts
from experts_layer import *
from hmc.experts import _sums
def while_adding_up(step):
    original = _sums.Sums.add_up
    def patched(self, *arguments):
        _sums.Sums.add_up = original
        step()
        original(self, *arguments)
    _sums.Sums.add_up = patched
import hmc.testing
os.environ.update(hmc.testing.environment("cuda"))
def warm(vendor):
    \"\"\"(Communicator, Buffer) after the rounds that import the other ranks' memory.\"\"\"
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm, device="cpu" if vendor == "cpu" else f"{vendor}:{comm.rank}")
    check_round(ep, 0, 33, 17, 5, 13)
    check_round(ep, 1, 33, 17, 5, 13)
    return comm, ep
"""


@pytest.mark.parametrize("vendor", ["cpu", "cuda"])
def test_rows_and_results_are_read_where_they_are(vendor: str, run_job: Callable[..., str]) -> None:
    source = f"""
    from hmc import _core
    comm, ep = warm({vendor!r})
    asked, get = [], _core.ExpertDispatch.get
    _core.ExpertDispatch.get = lambda self, *arguments: asked.append(arguments[-1]) or get(self, *arguments)
    def transferred():
        return {{name: count for name, count in comm.context.counters().items() if name.startswith("get.count.")}}
    for number in range(8):
        x = rows((0, comm.rank), 17, 33)  # as many rows in every round: memory grows in the first two
        ids, weights = routing((0, comm.rank), 17, 5, 13)
        before = transferred()
        asked.clear()
        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
        if {vendor!r} != "cpu":
            assert number < 4 or transferred() == before, (before, transferred())
            assert number < 4 or not asked, asked  # a call for nothing
        before = transferred()
        y = ep.combine(apply(ep, on_host(x2), handle), handle, timeout=20)
        assert number < 4 or transferred() == before, (before, transferred())
        check_sum(ep, y, x, ids, weights, handle)
    ep.close()
    print("done")
    """
    assert run_job(SURVIVORS + WHILE_ADDING_UP + textwrap.dedent(source), 2).count("done") == 2


@pytest.mark.parametrize("vendor", ["cpu", "cuda"])
def test_results_of_a_rank_that_dies_while_they_are_added_up_are_in_the_sum(vendor: str, tmp_path: Path) -> None:
    source = """
    comm, ep = warm(VENDOR)
    if comm.rank == 1:
        while_adding_up(lambda: (take("at it"), die()))
        check_round(ep, 2, 33, 17, 5, 13)
    def until_dead():
        give("at it")
        soon(lambda: not ep._fabric.peers.alive()[1])
        time.sleep(0.2)  # HMC drops what it imported from the rank
    while_adding_up(until_dead)
    handle = check_round(ep, 2, 33, 17, 5, 13)
    assert not handle.lost.any()
    assert check_round(ep, 3, 33, 17, 5, 13).lost.any()
    ep.close()
    end()
    """
    run_survivors(WHILE_ADDING_UP + f"VENDOR = {vendor!r}\n" + textwrap.dedent(source), 2, [0], tmp_path)


@pytest.mark.parametrize("vendor", ["cpu", "cuda"])
def test_a_rank_masked_while_it_adds_up_returns_no_sum(vendor: str, tmp_path: Path) -> None:
    """Rank 0 may already have overwritten the results that rank 1 reads."""
    source = """
    comm, ep = warm(VENDOR)
    if comm.rank == 1:
        def until_masked():
            give("at it")
            take("masked")
        while_adding_up(until_masked)
        message = refused(hmc.PeerLostError, check_round, ep, 2, 33, 17, 5, 13)
        assert "rank 0 has masked this rank" in message, message
    else:
        check_round(ep, 2, 33, 17, 5, 13)
        take("at it")
        ep.mask(1)
        check_round(ep, 3, 33, 17, 5, 13)
        give("masked")
    ep.close()
    end()
    """
    run_survivors(WHILE_ADDING_UP + f"VENDOR = {vendor!r}\n" + textwrap.dedent(source), 2, [0, 1], tmp_path)
