"""Wrong input from Python: the right exception, at once, and nothing lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hmc


@pytest.fixture
def comm() -> Iterator[hmc.Communicator]:
    """One rank on its own."""
    with hmc.init(rank=0, size=1) as alone:
        yield alone


def test_posted_calls_take_no_timeout(comm: hmc.Communicator) -> None:
    array = np.zeros(8, np.uint8)
    with pytest.raises(TypeError, match="timeout"):
        comm.isend(array, 0, timeout=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="timeout"):
        comm.irecv(array, 0, timeout=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("rank", [-1, 1, 1000])
def test_ranks_outside_the_group(comm: hmc.Communicator, rank: int) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match="rank"):
        comm.send(np.zeros(8, np.uint8), rank)
    with pytest.raises(hmc.InvalidArgumentError, match="rank"):
        comm.device(rank)


def test_forgetting_the_launcher_is_explained(comm: hmc.Communicator) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match="hmc run"):
        comm.send(np.zeros(8, np.uint8), 1)


@pytest.mark.parametrize("tag", [-5, (1 << 62) + 1])
def test_tags_outside_their_range(comm: hmc.Communicator, tag: int) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match="tag"):
        comm.isend(np.zeros(8, np.uint8), 0, tag=tag)


def test_arrays_that_cannot_be_received_into(comm: hmc.Communicator) -> None:
    read_only = np.zeros(8, np.uint8)
    read_only.flags.writeable = False
    with pytest.raises(hmc.InvalidArgumentError, match="read-only"):
        comm.irecv(read_only, 0)
    with pytest.raises(hmc.InvalidArgumentError, match="contiguous"):
        comm.irecv(np.zeros((8, 8), np.uint8)[:, ::2], 0)
    with pytest.raises(hmc.InvalidArgumentError):
        comm.irecv(np.array([object()]), 0)
    with pytest.raises((TypeError, hmc.InvalidArgumentError)):
        comm.irecv(7, 0)


def test_a_message_too_long_is_an_error_and_writes_nothing(comm: hmc.Communicator) -> None:
    short = np.full(4, 9, np.uint8)
    receive = comm.irecv(short, 0, tag=3)
    comm.send(np.arange(8, dtype=np.uint8), 0, tag=3, timeout=10)
    with pytest.raises(hmc.InvalidArgumentError, match="8 bytes"):
        receive.wait(10)
    assert (short == 9).all()


def test_a_timeout_withdraws_the_receive(comm: hmc.Communicator) -> None:
    late = np.zeros(8, np.uint8)
    with pytest.raises(hmc.HmcTimeoutError):
        comm.recv(late, 0, tag=1, timeout=0.05)
    comm.send(np.arange(8, dtype=np.uint8), 0, tag=1, timeout=10)
    assert (late == 0).all()
    fresh = np.zeros(8, np.uint8)
    comm.recv(fresh, 0, tag=1, timeout=10)
    assert np.array_equal(fresh, np.arange(8))


def test_closed_objects_say_so() -> None:
    comm = hmc.init(rank=0, size=1)
    buf = comm.buffer(64)
    comm.close()
    comm.close()
    with pytest.raises(hmc.ClosedError):
        comm.barrier()
    with pytest.raises(hmc.HmcError):
        comm.put(buf, comm.exchange(buf)[0])


def test_unknown_devices_are_named(comm: hmc.Communicator) -> None:
    with pytest.raises(hmc.HmcError, match="warp"):
        comm.buffer(64, device="warp:0")


def test_unequal_slices_are_refused(comm: hmc.Communicator) -> None:
    buf = comm.buffer(64)
    remote = comm.exchange(buf)[0]
    with pytest.raises(hmc.InvalidArgumentError, match="equal"):
        comm.put(buf[:8], remote[:9])
    comm.put(buf[:0], remote[:0]).wait(10)


def test_transports_without_an_interface_for_other_programs() -> None:
    with hmc.Context() as context:
        buffer = context.buffer(64)
        with pytest.raises(hmc.UnsupportedError, match="shm"):
            buffer.native("shm")
        with pytest.raises(hmc.UnsupportedError, match="tcp"):
            context.connect_native("tcp", {"gid": "::1", "qp_num": 1})
        with pytest.raises(hmc.InvalidArgumentError, match="carrier pigeon"):
            buffer.native("carrier pigeon")
        with pytest.raises(TypeError):
            context.connect_native("verbs", {"qp_num": -1})
    with hmc.Context(transports="shm") as context, pytest.raises(hmc.UnsupportedError, match="left out"):
        context.buffer(64).native("verbs")


@pytest.mark.parametrize("call", ["all_gather", "gather", "scatter"])
def test_displacements_without_counts(comm: hmc.Communicator, call: str) -> None:
    out, inp = np.zeros(8, np.uint8), np.ones(8, np.uint8)
    with pytest.raises(hmc.InvalidArgumentError, match="displacements= requires counts="):
        getattr(comm, call)(out, inp, displacements=[0])
    if call == "all_gather":
        with pytest.raises(hmc.InvalidArgumentError, match="displacements= requires counts="):
            comm.iall_gather(out, inp, displacements=[0])
    assert not out.any()


@pytest.mark.parametrize(
    ("call", "name"),
    [("reduce_scatter", "counts")]
    + [(call, name) for call in ("all_gather", "gather", "scatter") for name in ("inp", "counts", "displacements")],
)
def test_members_take_no_arguments_of_one_array(comm: hmc.Communicator, call: str, name: str) -> None:
    out, inp = np.zeros(8, np.uint8), np.ones(8, np.uint8)
    with pytest.raises(hmc.InvalidArgumentError, match=f"pass no {name}="):
        getattr(comm, call)({comm.local[0]: (out, inp)}, **{name: inp if name == "inp" else [8]})
    assert not out.any()
