"""Communicator.grow() on bad days: processes that die, stop, are late, interrupted or aborted. All get the same outcome."""

from __future__ import annotations

from pathlib import Path

import pytest
from survivors import run_survivors

THREE = """
    rank = int(os.environ["HMC_RANK"])
    comm = old_job(3)
    if comm:
        messages_go_on(comm, range(3))
"""


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_newcomer_that_never_comes(late: int, tmp_path: Path) -> None:
    """The first deadline ends it on all ranks, with what is missing. The old Communicator stays, and grows later."""
    source = (
        THREE
        + f"""
    if comm is None:
        new = hmc.join(take("invitation"), timeout=60)
    else:
        for number in range(5):
            if rank == 0:
                comm.invite(2)
                give(f"invited {{number}}")
            take(f"invited {{number}}")
            said = refusal(hmc.HmcTimeoutError, comm.grow, timeout=2 if rank == {late} else 60)
            if not any(b"which coordinates" in one for one in comm.exchange_bytes(said.encode(), timeout=60)):
                break  # else rank 0 was so slow that it was missed itself
        assert "2 of 2 invited processes to join" in said and "rank {late} (" in said, said
        check_collectives(comm)
        if rank == 0:
            give("invitation", comm.invite())
        new = comm.grow(timeout=60)
    check_collectives(new)
    end()
    """
    )
    run_survivors(source, 4, range(4), tmp_path)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_does_not_call(missing: int, tmp_path: Path) -> None:
    source = (
        THREE
        + f"""
    if comm is None:
        said = refusal(hmc.HmcTimeoutError, hmc.join, take("invitation"), timeout=60)
        assert "rank {missing} (" in said or {missing} == 0 and "rank 0 to call grow()" in said, said
    else:
        if rank == 0:
            give("invitation", comm.invite())
        take("invitation")
        if rank != {missing}:
            said = refusal(hmc.HmcTimeoutError, comm.grow, timeout=3)
            assert "rank {missing} (" in said and "to call grow()" in said, said
        check_collectives(comm)
        if rank == {missing}:
            assert "deadline" in refusal(hmc.HmcTimeoutError, comm.grow, timeout=60)  # of the others
        check_collectives(comm, seed=1)
    end()
    """
    )
    run_survivors(source, 4, range(4), tmp_path)


@pytest.mark.parametrize("waits", ["before", "after"])
def test_a_newcomer_whose_deadline_passes_may_come_again(waits: str, tmp_path: Path) -> None:
    source = (
        THREE
        + f"""
    if comm is None:
        invitation = take("invitation")
        for _ in range(5):
            said = refusal(hmc.HmcTimeoutError, hmc.join, invitation, timeout=1)
            if "deadline passed waiting for" in said:
                break  # else a busy machine was not so far within the second
        assert "deadline passed waiting for" in said and "rank " in said, said
        give("late")
        new = hmc.join(invitation, timeout=60)
    else:
        if rank == 0:
            give("invitation", comm.invite())
        if rank == 2 or {waits!r} == "before":
            take("late")
        new = comm.grow(timeout=60)
    check_collectives(new)
    end()
    """
    )
    run_survivors(source, 4, range(4), tmp_path)


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
@pytest.mark.parametrize("delay_ms", [0.0, 1, 3, 8, 20])
def test_a_process_that_dies_amid(victim: int, delay_ms: float, tmp_path: Path) -> None:
    """All the others fail; or all get the new Communicator, which counts it as lost."""
    living = [rank for rank in range(5) if rank != victim]
    source = (
        THREE
        + f"""
    def die():
        end = time.perf_counter() + {delay_ms / 1000}
        while time.perf_counter() < end:
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        give("invitation", comm.invite(2))
    invitation = take("invitation")
    if rank == {victim}:
        threading.Thread(target=die).start()
    try:
        new = comm.grow(timeout={10 if victim > 2 else 60}) if comm else hmc.join(invitation, timeout=60)
    except hmc.HmcError as error:
        # A newcomer that died before it came is one that does not come. One that comes after the end of the invitation is refused.
        kinds = (hmc.PeerLostError, hmc.HmcTimeoutError) if {victim} > 2 else (hmc.PeerLostError,)
        kinds += (hmc.AuthenticationError, hmc.TransportError, hmc.ClosedError) if rank > 2 else ()
        assert isinstance(error, kinds), error
        print("lost", flush=True)
    else:
        print("grown", flush=True)
        refusal(hmc.HmcError, lambda: [new.barrier(timeout=60) for _ in range(10**9)])
        left = new.shrink(timeout=60)
        assert left.size == 4
        check_collectives(left)
    if rank == {victim}:
        time.sleep(60)
    if comm:
        left = comm.shrink(timeout=60)
        assert left.size == {3 if victim > 2 else 2}
        check_collectives(left)
    end()
    """
    )
    printed = run_survivors(source, 5, living, tmp_path, timeout=120)
    assert len({tuple(lines) for lines in printed.values()}) == 1, printed


@pytest.mark.parametrize("called", [True, False])
def test_a_newcomer_that_dies_after_it_came(called: bool, tmp_path: Path) -> None:
    """Once grow() was called, all ranks get PeerLostError. Before, another process takes its place."""
    source = (
        THREE
        + f"""
    if rank > 2:
        take(str(rank))
        give("pid", str(os.getpid()))
        new = hmc.join(take("invitation"), timeout=60)
    else:
        def here():
            return any(peer.name.endswith(":" + take("pid")) for peer in comm.context.peers)
        def kill_newcomer():
            while not here():
                time.sleep(0.01)
            time.sleep(1)  # it has applied
            os.kill(int(take("pid")), signal.SIGKILL)
            while here():
                time.sleep(0.01)
        if rank == 0:
            give("3")
            take("pid")
            give("invitation", comm.invite({2 if called else 1}))
            killing = threading.Thread(target=kill_newcomer)
            killing.start()
        if {called}:
            assert "a newcomer, " in refusal(hmc.PeerLostError, comm.grow, timeout=60)
        if rank == 0:
            killing.join()
            if {called}:
                give("invitation", comm.invite())
            give("4")
        new = comm.grow(timeout=60)
    check_collectives(new)
    end()
    """
    )
    run_survivors(source, 5, [0, 1, 2, 4], tmp_path, timeout=90)


def test_a_stopped_newcomer_is_the_others_deadline(tmp_path: Path) -> None:
    source = (
        THREE
        + """
    if comm is None:
        give("pid", str(os.getpid()))
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGSTOP]).start()
        hmc.join(take("invitation"), timeout=60)
    if rank == 0:
        pid = int(take("pid"))
        give("invitation", comm.invite())
        while b") T" not in open(f"/proc/{pid}/stat", "rb").read():
            time.sleep(0.01)
        give("stopped")
    take("stopped")
    said = refusal(hmc.HmcTimeoutError, comm.grow, timeout=4)
    assert "deadline" in said, said
    check_collectives(comm)
    end(*([pid] if rank == 0 else []))
    """
    )
    run_survivors(source, 4, range(3), tmp_path)


def test_ctrl_c_ends_it_everywhere(tmp_path: Path) -> None:
    source = (
        THREE
        + """
    if comm is None:
        give("pid", str(os.getpid()))
        assert "interrupted" in refusal(hmc.HmcCancelledError, hmc.join, take("invitation"), timeout=60)
        end()
    def see_the_newcomer():
        while not any(peer.name.endswith(":" + take("pid")) for peer in comm.context.peers):
            time.sleep(0.01)
        give("came")
    def interrupt():
        take("came")
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)
    if rank == 0:
        give("invitation", comm.invite(2))
        threading.Thread(target=see_the_newcomer).start()
    if rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Thread(target=interrupt).start()
            comm.grow(timeout=60)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("not interrupted")
    else:
        said = refusal(hmc.HmcCancelledError, comm.grow, timeout=60)
        assert "rank 1 (" in said and "interrupted" in said, said
    check_collectives(comm)
    end()
    """
    )
    run_survivors(source, 4, range(4), tmp_path)


@pytest.mark.parametrize("aborts", [0, 2])
def test_an_abort_ends_it_everywhere(aborts: int, tmp_path: Path) -> None:
    source = (
        THREE
        + f"""
    if comm is None:
        assert "enough" in refusal(hmc.HmcCancelledError, hmc.join, take("invitation"), timeout=60)
        end()
    if rank == 0:
        give("invitation", comm.invite(2))
    if rank == {aborts}:
        threading.Timer(1, comm.abort, ["enough"]).start()
    said = refusal(hmc.HmcCancelledError, comm.grow, timeout=60)
    assert "rank {aborts} (" in said and "enough" in said, said
    assert "enough" in refusal(hmc.HmcCancelledError, comm.grow, timeout=60)
    check_collectives(comm.shrink(timeout=60))
    end()
    """
    )
    run_survivors(source, 4, range(4), tmp_path)


def test_a_rank_that_closed_its_communicator(tmp_path: Path) -> None:
    source = (
        THREE
        + """
    part = comm.split(0, timeout=60)
    if rank == 2:
        part.close()
    messages_go_on(comm, range(3), seed=1)
    if rank == 0:
        part.invite()
    if rank != 2:
        assert "rank 2 (" in refusal(hmc.ClosedError, part.grow, timeout=60)
    messages_go_on(comm, range(3), seed=2)
    end()
    """
    )
    run_survivors(source, 3, range(3), tmp_path)
