"""hmc.experts on the CPU: combine reads results in the other ranks' memory, whatever those ranks do meanwhile."""

from __future__ import annotations

import textwrap
from pathlib import Path

from survivors import run_survivors

WHILE_ADDING_UP = """
import hmc.experts
from experts_layer import *
from hmc.experts import _sums
def while_adding_up(step):
    original = _sums.Sums.add_up_on_cpu
    def add_up(self, *arguments):
        _sums.Sums.add_up_on_cpu = original
        step()
        original(self, *arguments)
    _sums.Sums.add_up_on_cpu = add_up
"""


def test_results_of_a_rank_that_dies_while_they_are_added_up_are_in_the_sum(tmp_path: Path) -> None:
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    check_round(ep, 0, 33, 17, 5, 13)
    if comm.rank == 1:
        while_adding_up(lambda: (take("at it"), die()))
        check_round(ep, 1, 33, 17, 5, 13)
    def until_dead():
        give("at it")
        soon(lambda: not ep._fabric.peers.alive()[1])
        time.sleep(0.2)  # HMC drops what it imported from the rank
    while_adding_up(until_dead)
    handle = check_round(ep, 1, 33, 17, 5, 13)
    assert not handle.lost.any()
    assert check_round(ep, 2, 33, 17, 5, 13).lost.any()
    ep.close()
    end()
    """
    run_survivors(WHILE_ADDING_UP + textwrap.dedent(source), 2, [0], tmp_path)


def test_a_rank_masked_while_it_adds_up_returns_no_sum(tmp_path: Path) -> None:
    """Rank 0 may already have overwritten the results that rank 1 reads."""
    source = """
    comm = hmc.init(timeout=30)
    ep = buffer_of(comm)
    check_round(ep, 0, 33, 17, 5, 13)
    if comm.rank == 1:
        def until_masked():
            give("at it")
            take("masked")
        while_adding_up(until_masked)
        message = refused(hmc.PeerLostError, check_round, ep, 1, 33, 17, 5, 13)
        assert "rank 0 has masked this rank" in message, message
    else:
        check_round(ep, 1, 33, 17, 5, 13)
        take("at it")
        ep.mask(1)
        check_round(ep, 2, 33, 17, 5, 13)
        give("masked")
    ep.close()
    end()
    """
    run_survivors(WHILE_ADDING_UP + textwrap.dedent(source), 2, [0, 1], tmp_path)
