"""Communicator.grow() and hmc.join(): newcomers that come, die, are late or forged. All get the same Communicator, or an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import HMC
from hosts import Hosts, wait_all
from survivors import PRELUDE, check_collectives, refusal, run_survivors

import hmc


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("old", "newcomers"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_newcomers_have_the_last_ranks(old: int, newcomers: int, transport: str, tmp_path: Path) -> None:
    source = f"""
    rank = int(os.environ["HMC_RANK"])
    os.environ["HMC_TRANSPORTS"] = {transport!r}
    comm = old_job({old})
    if comm is None:
        new = hmc.join(take("invitation"), timeout=60)
        assert new.rank >= {old}
    else:
        if rank == 0:
            give("invitation", comm.invite({newcomers}))
        new = comm.grow(timeout=60)
        assert new.rank == rank
    assert new.size == {old + newcomers}
    assert new.old_ranks == [*range({old})] + [-1] * {newcomers}
    assert new.lost == []
    check_collectives(new)
    assert len(new.islands()) == 1
    assert new.plan("all_reduce", 1 << 20).algorithm
    assert len([card for card in new.topology(timeout=60).cards if card.process is not None]) == new.size
    if comm:
        check_collectives(comm, seed=1)
    messages_go_on(new, range(new.size), seed=2)
    end()
    """
    run_survivors(source, old + newcomers, range(old + newcomers), tmp_path, timeout=90)


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_dead_rank_is_replaced(dead: int, tmp_path: Path) -> None:
    living = [rank for rank in range(4) if rank != dead]
    source = f"""
    rank = int(os.environ["HMC_RANK"])
    comm = old_job(3)
    if comm is None:
        new = hmc.join(take("invitation"), timeout=60)
    else:
        comm.barrier(timeout=60)
        give(f"past {{rank}}")
        if rank == {dead}:
            for other in range(3):  # its death would end a barrier that they have not returned from
                take(f"past {{other}}")
            os.kill(os.getpid(), signal.SIGKILL)
        refusal(hmc.PeerLostError, comm.barrier, timeout=60)
        if rank == 0:
            comm.invite()
        assert "rank {dead} (" in refusal(hmc.PeerLostError, comm.grow, timeout=60)
        left = comm.shrink(timeout=60)
        if left.rank == 0:
            give("invitation", left.invite())
        else:
            assert "rank 0" in refusal(hmc.InvalidArgumentError, left.invite)
        new = left.grow(timeout=60)
        left.close()
        comm.close()
    assert (new.size, new.old_ranks) == (3, [0, 1, -1])
    summed = np.full(100_001, float(new.rank + 1))
    new.all_reduce(summed, timeout=60)
    assert (summed == 6).all()
    check_collectives(new)
    end()
    """
    run_survivors(source, 4, living, tmp_path, timeout=90)


@pytest.mark.timeout(300)
def test_rounds_of_losses_and_newcomers_beside_traffic(tmp_path: Path) -> None:
    """20 rounds: a rank dies amid all_reduce and messages, the others shrink and grow by one."""
    rounds = 20
    source = f"""
    rank = int(os.environ["HMC_RANK"])
    comm = old_job(3)
    began = 0
    if comm is None:
        began = rank - 3  # the round in which this process comes
        comm = hmc.join(take(f"invitation {{began}}", 230), timeout=90)
    for number in range(began, {rounds}):
        if comm.size == 3 and number > began or rank < 3 and number == 0:
            victim = (number * 2) % 3
            works = [comm.irecv(np.zeros(70_001), r, tag=number) for r in range(3)]
            works += [comm.isend(np.arange(70_001.0) + comm.rank, r, tag=number) for r in range(3)]
            hmc.wait_all(works, timeout=60)
            give(f"past {{number}} {{comm.rank}}")
            if comm.rank == victim:
                for other in range(3):  # its death would end what they have with it
                    take(f"past {{number}} {{other}}")
                threading.Timer(0.005, os.kill, [os.getpid(), signal.SIGKILL]).start()
            def until_it_fails():
                for step in range(10**9):
                    summed = np.full(1 + step * 97 % 9001, comm.rank + 1.0)
                    comm.all_reduce(summed, timeout=60)
                    assert (summed == 6).all()
            refusal(hmc.HmcError, until_it_fails)
            older, left = comm, comm.shrink(timeout=60)
            while left.size > 2:
                refusal(hmc.HmcError, lambda: [left.barrier(timeout=60) for _ in range(10**9)])
                left = left.shrink(timeout=60)
            if left.rank == 0:
                give(f"invitation {{number}}", left.invite())
            comm = left.grow(timeout=60)
            older.close()
            left.close()
        assert comm.old_ranks == [0, 1, -1]
        check = np.full(5, comm.rank + 1.0)
        comm.all_reduce(check, timeout=60)
        assert (check == 6).all()
    check_collectives(comm)
    end()
    """
    # Who lives at the end: the process of each rank, round by round.
    ranks = [0, 1, 2]
    for number in range(rounds):
        del ranks[(number * 2) % 3]
        ranks.append(3 + number)
    run_survivors(source, 3 + rounds, ranks, tmp_path, timeout=240)


def test_several_members_of_each_process(tmp_path: Path) -> None:
    source = """
    rank = int(os.environ["HMC_RANK"])
    if rank == 2:
        new = hmc.join(take("invitation"), devices=["cpu"] * 3, timeout=60)
        assert [member.rank for member in new.local] == [3, 4, 5]
    else:
        comm = hmc.init(rank=rank, size=2, devices=["cpu"] * (1 + rank), timeout=60)
        if rank == 0:
            give("invitation", comm.invite())
        new = comm.grow(timeout=60)
    assert new.old_ranks == [0, 1, 2, -1, -1, -1]
    arrays = {member: (np.zeros(1000), np.full(1000, 10.0 ** member.rank)) for member in new.local}
    new.all_reduce(arrays, timeout=60)
    assert all((out == 111_111).all() for out, _ in arrays.values())
    new.barrier(timeout=60)
    end()
    """
    run_survivors(source, 3, range(3), tmp_path)


# ---- who may join ----


def test_a_forged_or_used_invitation_is_refused(tmp_path: Path) -> None:
    source = """
    rank = int(os.environ["HMC_RANK"])
    comm = old_job(1)
    if comm:
        replaced = comm.invite()
        give("replaced", replaced)
        invitation = comm.invite()
        assert replaced != invitation
        give("invitation", invitation)
        new = comm.grow(timeout=60)
        check_collectives(new)
        give("grown")
        take("refused")
        new.barrier(timeout=60)
    elif rank == 1:
        invitation = take("invitation")
        other = "0" if invitation[72] != "0" else "1"  # the ticket's last digit
        for forged in (take("replaced"), invitation[:9] + "00" * 32 + invitation[73:], invitation[:72] + other + invitation[73:]):
            assert "no such invitation" in refusal(hmc.AuthenticationError, hmc.join, forged, timeout=60)
        give("forgeries")
        new = hmc.join(invitation, timeout=60)
        check_collectives(new)
        new.barrier(timeout=60)
    else:
        take("grown")
        for _ in range(2):
            assert "no such invitation" in refusal(hmc.AuthenticationError, hmc.join, take("invitation"), timeout=60)
        give("refused")
    end()
    """
    run_survivors(source, 3, range(3), tmp_path)


def test_the_job_key_is_required_besides(tmp_path: Path) -> None:
    source = """
    rank = int(os.environ["HMC_RANK"])
    if rank == 0:
        comm = hmc.init(rank=0, size=1, key=hmc.keygen(), listen="tcp://127.0.0.1:0", timeout=60)
        give("invitation", comm.invite())
        refusal(hmc.HmcTimeoutError, comm.grow, timeout=4)
        take("refused")
        give("key", key := hmc.keygen())
        comm.close()
        comm = hmc.init(rank=0, size=1, key=key, listen="tcp://127.0.0.1:0", timeout=60)
        give("second", comm.invite())
        check_collectives(comm.grow(timeout=60))
    else:
        invitation = take("invitation")
        refusal(hmc.AuthenticationError, hmc.join, invitation, timeout=30)
        refusal(hmc.AuthenticationError, hmc.join, invitation, key=hmc.keygen(), timeout=30)
        give("refused")
        check_collectives(hmc.join(take("second"), key=take("key"), timeout=60))
    end()
    """
    run_survivors(source, 2, range(2), tmp_path)


@pytest.mark.parametrize("text", ["", "hmcjoin1-", "hmcjoin1-zz", "hmcjoin1-" + "00" * 40, "hmc1-abc", "x" * 100_000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match="not an invitation"):
        hmc.join(text, timeout=5)


def test_arguments() -> None:
    with hmc.init(rank=0, size=1) as comm:
        for count in (0, -1, 1 << 20):
            with pytest.raises(hmc.InvalidArgumentError, match="processes"):
                comm.invite(count)
        with pytest.raises(hmc.InvalidArgumentError, match="call invite"):
            comm.grow(timeout=5)
        with pytest.raises(hmc.UnsupportedError, match="cuda:99"):
            hmc.join(comm.invite(), devices=["cuda:99"], timeout=5)
        check_collectives(comm)
        invitation = comm.invite()
    with pytest.raises(hmc.HmcError):
        hmc.join(invitation, timeout=5)
    assert "closed" in refusal(hmc.ClosedError, comm.grow, timeout=5)
    assert "closed" in refusal(hmc.ClosedError, comm.invite)


# ---- over hosts ----

OLD = """
with hmc.init(timeout=60, **SETTINGS) as comm:
    if comm.rank == 0:
        pathlib.Path(sys.argv[1]).with_suffix(".part").write_text(comm.invite())
        pathlib.Path(sys.argv[1]).with_suffix(".part").rename(sys.argv[1])
    with comm.grow(timeout=60) as new:
        check_collectives(new)
        new.barrier(timeout=60)
print("survived")
"""
NEW = """
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
with hmc.join(pathlib.Path(sys.argv[1]).read_text(), timeout=60) as new:
    check_collectives(new)
    new.barrier(timeout=60)
print("survived")
"""


@pytest.mark.parametrize("old", [1, 2])
def test_newcomers_of_another_host(old: int, hosts: Hosts, tmp_path: Path) -> None:
    """They come to the rendezvous of the job; or to the port that a process listens at that was alone."""
    key = hmc.keygen()
    settings = {"listen": "tcp://[::]:0"} if old == 1 else {}
    script, newcomer, invitation = tmp_path / "old.py", tmp_path / "new.py", tmp_path / "invitation"
    script.write_text(PRELUDE + "import pathlib\n" + OLD.replace("SETTINGS", repr(settings)))
    newcomer.write_text(PRELUDE + "import pathlib\n" + NEW)
    line = ["--rendezvous", f"tcp://{hosts[0].address}:7700", "-n", str(old), str(script), str(invitation)]
    job = hosts[0].start(*HMC, "run", *line, HMC_JOB_KEY=key)
    joins = hosts[1].start(sys.executable, str(newcomer), str(invitation), HMC_JOB_KEY=key)
    for status, output in wait_all([job, joins]):
        assert (status, output[-9:]) == (0, "survived\n"), output
