"""Settings that differ between two sides bind the side that has them, and both sides tell of the same path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc
import hmc.testing


def test_both_sides_tell_of_one_path() -> None:
    with hmc.Context(transports="shm,tcp") as a, hmc.Context(transports="tcp") as b:
        ab = a.connect(b.addresses[0], timeout=20)
        ba = b.accept(timeout=20)
        assert ab.path().transport == ba.path().transport == "tcp"
        assert any("shm: the peer does not offer it" in reason for reason in ab.path().rejected)
        assert ab.path().runner_up == ba.path().runner_up == ""
    with hmc.Context(transports="shm,tcp") as a, hmc.Context(transports="^verbs") as b:
        ab = a.connect(b.addresses[0], timeout=20)
        ba = b.accept(timeout=20)
        assert (ab.path().transport, ab.path().runner_up) == (ba.path().transport, ba.path().runner_up) == ("shm", "tcp")
        assert "next: tcp" in str(ab.path())


def test_nothing_in_common_is_refused_with_every_reason() -> None:
    with hmc.Context(transports="shm") as a, hmc.Context(transports="tcp") as b:
        with pytest.raises(hmc.UnsupportedError, match="shm: the peer does not offer it"):
            a.connect(b.addresses[0], timeout=20)


# Rank 0 forbids stages. What it starts must be direct; what the other starts into its memory may be staged.
POLICIES = """
import os
with hmc.init(policy="direct" if os.environ["HMC_RANK"] == "0" else "auto") as comm:
    mine = comm.buffer(100_000, device="cuda:0" if comm.rank == 0 else "musa:0")
    theirs = comm.exchange(mine, timeout=30)[1 - comm.rank]
    if comm.rank == 0:
        try:
            comm.put(mine, theirs)
            raise SystemExit("a staged put was taken")
        except hmc.UnsupportedError as error:
            assert 'policy="direct" forbids' in str(error), error
        comm.barrier(timeout=30)
        comm.wait_notify(1, 7, timeout=30)
        got = np.zeros(100_000, np.uint8)
        mine.memory.copy_to(got)
        assert np.array_equal(got, pattern(100_000, 5))
    else:
        mine.memory.copy_from(pattern(100_000, 5))
        comm.barrier(timeout=30)
        comm.put(mine, theirs, notify=7).wait(timeout=30)
        assert comm.path(0, "musa:0", "cuda:0").transport == "staging"
    comm.barrier(timeout=30)
    print("done")
"""


def test_policy_binds_the_side_that_has_it(run_job: Callable[..., str]) -> None:
    assert run_job(POLICIES, environment=hmc.testing.environment()).count("done") == 2
