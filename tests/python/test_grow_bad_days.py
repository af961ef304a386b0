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
    """The first deadline, of one rank, ends it on all with one reason. Rank 0 may be too busy to give it where it does not call."""
    source = (
        THREE
        + f"""
    ended = (hmc.HmcTimeoutError, hmc.AuthenticationError)  # the second: it came after the end
    if comm is None:
        said = refusal(ended, hmc.join, take("invitation"), timeout=60)
        assert "rank {missing} (" in said or "rank 0 to call grow()" in said or "ended with its grow()" in said, said
    else:
        if rank == 0:
            give("invitation", comm.invite())
        take("invitation")
        if rank != {missing}:
            said = refusal(hmc.HmcTimeoutError, comm.grow, timeout=3 if rank == {1 - missing} else 60)
            assert "rank {missing} (" in said, said
            assert "to call grow()" in said or {missing} == 0 and "which coordinates" in said, said
        check_collectives(comm)
        if rank == {missing}:
            assert "deadline" in refusal(hmc.HmcTimeoutError, comm.grow, timeout=60)  # of the others
        check_collectives(comm, seed=1)
    end()
    """
    )
    run_survivors(source, 4, range(4), tmp_path, timeout=110)


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
    def here(pid):
        return any(peer.name.endswith(":" + pid) for peer in comm.context.peers)
    def kill_newcomer(pid, seconds):
        while not here(pid):
            time.sleep(0.01)
        time.sleep(seconds)  # then it has applied
        os.kill(int(pid), signal.SIGKILL)
        while here(pid):
            time.sleep(0.01)
    if rank == 3:  # it starts those that die
        for number in range(2):
            invitation = take(f"invitation {{number}}")
            if not invitation:
                break
            join = "import sys, hmc; hmc.join(sys.argv[1], timeout=100)"
            newcomer = subprocess.Popen([sys.executable, "-c", join, invitation], cwd="/")
            give(f"pid {{number}}", str(newcomer.pid))
            assert newcomer.wait(100) == -signal.SIGKILL
        end()
    if rank == 4:
        new = hmc.join(take("last invitation"), timeout=100)
    else:
        # On a loaded host a process may die before it has applied: then none of those invited came; the next one gets more time.
        for number, seconds in enumerate((1, 15)):
            if rank == 0:
                give(f"invitation {{number}}", comm.invite({2 if called else 1}))
                killing = threading.Thread(target=kill_newcomer, args=(take(f"pid {{number}}"), seconds))
                killing.start()
            if not {called}:
                break
            said = refusal((hmc.PeerLostError, hmc.HmcTimeoutError), comm.grow, timeout=seconds + 14)
            if rank == 0:
                killing.join()
            if "a newcomer, " in said:
                break
        assert not {called} or "a newcomer, " in said, said
        if rank == 0:
            killing.join()
            give("last invitation", comm.invite() if {called} else take("invitation 0"))
            if number == 0:
                give("invitation 1")
        new = comm.grow(timeout=60)
    check_collectives(new)
    end()
    """
    )
    run_survivors(source, 5, range(5), tmp_path, timeout=110)


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
        # One that comes late finds that it has ended.
        said = refusal((hmc.HmcCancelledError, hmc.AuthenticationError), hmc.join, take("invitation"), timeout=60)
        assert "interrupted" in said or "ended with its grow()" in said, said
        give("told")
        end()
    def see_the_newcomer():
        while not any(peer.name.endswith(":" + take("pid")) for peer in comm.context.peers):
            time.sleep(0.01)
        give("came")
    begun = False
    def interrupt():
        while not begun:
            time.sleep(0.01)
        take("came")
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)
    if rank == 0:
        give("invitation", comm.invite(2))
        threading.Thread(target=see_the_newcomer).start()
    if rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt).start()
        try:
            begun = True  # no signal is handled between this and the call
            comm.grow(timeout=60)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("not interrupted")
    else:
        said = refusal(hmc.HmcCancelledError, comm.grow, timeout=60)
        assert "rank 1 (" in said and "interrupted" in said, said
    check_collectives(comm)
    take("told")
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
        # One that comes late finds that it has ended.
        said = refusal((hmc.HmcCancelledError, hmc.AuthenticationError), hmc.join, take("invitation"), timeout=60)
        assert "enough" in said or "ended with its grow()" in said, said
        give("told")
        end()
    if rank == 0:
        give("invitation", comm.invite(2))
    take("invitation")
    if rank == {aborts}:
        threading.Timer(1, comm.abort, ["enough"]).start()
    said = refusal(hmc.HmcCancelledError, comm.grow, timeout=60)
    assert "rank {aborts} (" in said and "enough" in said, said
    assert "enough" in refusal(hmc.HmcCancelledError, comm.grow, timeout=60)
    check_collectives(comm.shrink(timeout=60))
    take("told")
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
