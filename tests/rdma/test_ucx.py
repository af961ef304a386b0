"""Whole jobs over UCX's put and get, which the network cards carry out: every byte compared; and a peer that dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .pieces import ALL_TO_ALL, BLOCKS, MESSAGES, PUTS, PUTTING, SIZES


@pytest.mark.timeout(200)
def test_messages_puts_gets_and_blocks(run_ucx_job: Callable[..., str]) -> None:
    job = f"""
with hmc.init() as comm:
    messages(comm, {SIZES})
    puts(comm, {SIZES})
    blocks(comm, 300, 4104)
    print(comm.path(1 - comm.rank))
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
    here = comm.buffer(3 << 20)
    for turn in range(6):
        target = comm.buffer(3 << 20)
        remote = comm.exchange(target, timeout=60)[1 - comm.rank]
        comm.barrier(timeout=60)
        if comm.rank == 1:
            time.sleep(0.05 * turn)
            held = target.memory
            target.close(timeout=60)
            held.numpy()[:] = 0x5A
            comm.barrier(timeout=60)
            assert (held.numpy() == 0x5A).all(), "written after it was closed"
            continue
        try:
            while True:
                works = [(comm.get if (turn + i) % 3 else comm.put)(here[i : 2 << 20], remote[i : 2 << 20]) for i in range(3)]
                for work in works:
                    work.wait(timeout=60)
        except hmc.StaleBufferError as error:
            assert "closed" in str(error), error
        print("turn", turn)
        comm.barrier(timeout=60)
    puts(comm, [1 << 20])
"""
    assert run_ucx_job(PUTS + job, timeout=150).count("turn") == 6
