"""Whole jobs over UCX's put and get, which the network cards carry out: every byte compared; and a peer that dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .pieces import ALL_TO_ALL, BLOCKS, CLOSED_IN_USE, MESSAGES, PUTS, PUTTING, SIZES


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_messages_puts_gets_and_blocks(run_ucx_job: Callable[..., str]) -> None:
    job = f"""
with hmc.init() as comm:
    print(comm.path(1 - comm.rank))
    messages(comm, {SIZES})
    puts(comm, {SIZES})
    blocks(comm, 300, 4104)
"""
    assert "ucx (rc_verbs" in run_ucx_job(MESSAGES + PUTS + BLOCKS + job, timeout=150)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_all_to_all(run_ucx_job: Callable[..., str]) -> None:
    run_ucx_job(ALL_TO_ALL, ranks=4, timeout=120)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_peer_killed_while_it_is_written_to(run_ucx_job: Callable[..., str]) -> None:
    job = """
if comm.rank == 1:
    time.sleep(2)
    os.kill(os.getpid(), 9)
put_until_lost()
"""
    assert "lost after" in run_ucx_job(PUTTING + job, status=137)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_buffers_closed_while_they_are_used(run_ucx_job: Callable[..., str]) -> None:
    """The owner asks those who use it to stop first, so the card never refuses anything and the connection lives on."""
    job = """
with hmc.init() as comm:
    closed_in_use(comm, 6)
    puts(comm, [1 << 20])
"""
    assert run_ucx_job(PUTS + CLOSED_IN_USE + job, timeout=150).count("turn") == 6
