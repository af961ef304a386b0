"""hmc.experts: arrays of the caller in any order of memory, and what the caller does with them between the calls."""

from __future__ import annotations

import textwrap
from pathlib import Path

from survivors import run_survivors

PRELUDE = """
import hmc.experts
from experts_layer import *
comm = hmc.init(timeout=30)
ep = buffer_of(comm)
"""


def run(source: str, tmp_path: Path) -> None:
    run_survivors(PRELUDE + textwrap.dedent(source) + "\nep.close()\nend()\n", 2, [0, 1], tmp_path)


def test_missing_results_are_zero_for_ids_in_fortran_order(tmp_path: Path) -> None:
    source = """
    for number in range(6):
        x = rows((number, comm.rank), 17, 33)
        ids, weights = routing((number, comm.rank), 17, 5, 13)
        ids = np.asfortranarray(ids.astype(np.int64))
        x2, handle = ep.dispatch(x, ids, weights, timeout=20)
        if comm.rank == number % 2:
            ep.release(handle, timeout=20)
        else:
            y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
            assert np.array_equal(y, dense(x, ids, weights, handle.lost))
    """
    run(source, tmp_path)


def test_ids_and_weights_may_change_after_dispatch(tmp_path: Path) -> None:
    source = """
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    chosen, factors = ids.astype(np.int64), weights.copy()
    x2, handle = ep.dispatch(x, chosen, factors, timeout=20)
    chosen[:], factors[:] = -1, 7
    check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    """
    run(source, tmp_path)


def test_large_unsigned_ids_are_refused(tmp_path: Path) -> None:
    source = """
    x, weights = rows((1, comm.rank), 17, 33), np.ones((17, 1), np.float32)
    for number in (13, 2**63, 2**64 - 1):
        message = refused(hmc.InvalidArgumentError, ep.dispatch, x, np.full((17, 1), number, np.uint64), weights, timeout=20)
        assert f"topk_ids[0, 0] is {number}" in message, message
    comm.barrier(timeout=20)
    """
    run(source, tmp_path)


def test_timeouts_beyond_the_clock_are_no_limit(tmp_path: Path) -> None:
    source = """
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    for timeout in (1e9, 1e10, 1e300):
        x2, handle = ep.dispatch(x, ids, weights, timeout=timeout)
        check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=timeout), x, ids, weights, handle)
    """
    run(source, tmp_path)


def test_a_rank_that_closes_while_its_header_is_read(tmp_path: Path) -> None:
    """Its last word overwrites the header: the other rank goes on without the rank."""
    source = """
    from hmc.experts._calls import Dispatch
    check_round(ep, 0, 33, 17, 5, 13)
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    comm.barrier(timeout=20)
    if comm.rank == 0:
        ep.dispatch(x, ids, weights, timeout=20)
        ep.close()
        end()
    read = Dispatch._read
    def slow(self, ranks):
        words, first = self.fabric.window.numpy(np.int64), self.fabric.layout.place(self.kind, 1, 0)
        soon(lambda: words[first] < 0)
        read(self, ranks)
    Dispatch._read = slow
    x2, handle = ep.dispatch(x, ids, weights, timeout=20)
    check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    assert ep.alive == (False, True)
    """
    run(source, tmp_path)


def test_descriptors_that_name_no_results(tmp_path: Path) -> None:
    """Another process's buffer, a wrong key, no descriptor at all: one class of errors, which names the rank. A mask ends it."""
    source = """
    from hmc.experts._calls import Combine
    announce = Combine.announce
    buffers = [buffer_of(comm) for _ in range(3)]
    for wrong, each in zip((1, 12, 60), buffers, strict=True):
        def offer_wrong(call, ranks):
            damaged = bytearray(call.fabric.results[call.number % 2].descriptor)
            damaged[wrong] ^= 0xFF
            call._steps.offer(bytes(damaged))
            announce(call, ranks)
        if comm.rank == 1:
            Combine.announce = offer_wrong
        x, ids, weights = rows((1, 0), 17, 33), np.full((17, 1), 12 * (1 - comm.rank)), np.ones((17, 1), np.float32)
        x2, handle = each.dispatch(x, ids, weights, timeout=20)
        if comm.rank == 0:
            message = refused(hmc.ProtocolError, each.combine, apply(each, x2, handle), handle, timeout=20)
            assert "the header of rank 1 names no results" in message, message
            assert "has not ended" in refused(hmc.InvalidArgumentError, each.dispatch, x, ids, weights)
            assert "names no results" in refused(hmc.ProtocolError, each.resume, timeout=20)
            each.mask(1, timeout=20)
            y = each.resume(timeout=20)
            assert handle.lost.all() and not y.any()
        else:
            try:
                each.combine(apply(each, x2, handle), handle, timeout=20)
            except hmc.PeerLostError as error:
                assert "has masked this rank" in str(error)
    comm.barrier(timeout=20)
    for each in buffers:
        each.close()
    """
    run(source, tmp_path)


def test_a_rank_whose_headers_are_wrong_can_be_masked(tmp_path: Path) -> None:
    """The others go on without it, and close without waiting for it; it learns that it was masked."""
    source = """
    from hmc.experts._calls import Dispatch
    put_headers = Dispatch._put_headers
    def wrong(call, ranks):
        if call.number == 1:
            words = call.fabric.outbox.numpy(np.int64)
            for rank in {0, 1}.intersection(ranks):
                words[call.fabric.layout.place(call.kind, 1, rank) + 1] += 1
        return put_headers(call, ranks)
    if comm.rank == 2:
        Dispatch._put_headers = wrong
    check_round(ep, 0, 33, 17, 5, 13)
    comm.barrier(timeout=20)
    if comm.rank == 2:
        message = refused(hmc.PeerLostError, lambda: [check_round(ep, number, 33, 17, 5, 13) for number in range(1, 9)])
        assert "has masked this rank" in message, message
        comm.barrier(timeout=20)
        ep.close(timeout=20)
        end()
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    message = refused(hmc.ProtocolError, ep.dispatch, x, ids, weights, timeout=20)
    assert "the header of rank 2 has" in message and "mask(rank)" in message, message
    ep.mask(2, timeout=20)
    comm.barrier(timeout=20)
    x2, handle = ep.resume(timeout=20)
    check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    assert ep.alive == (True, True, False)
    for number in range(2, 9):
        check_round(ep, number, 33, 17, 5, 13)
    """
    run_survivors(PRELUDE + textwrap.dedent(source) + "\nep.close()\nend()\n", 3, [0, 1, 2], tmp_path)


def test_a_buffer_closes_after_a_wrong_header(tmp_path: Path) -> None:
    source = """
    from hmc.experts._calls import Dispatch
    put_headers = Dispatch._put_headers
    check_round(ep, 0, 33, 17, 5, 13)
    if comm.rank == 1:
        def wrong(call, ranks):
            words = call.fabric.outbox.numpy(np.int64)
            for rank in ranks:
                words[call.fabric.layout.place(call.kind, call.number, rank) + 2] = -1
            return put_headers(call, ranks)
        Dispatch._put_headers = wrong
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    refused(hmc.ProtocolError, ep.dispatch, x, ids, weights, timeout=20)  # rank 1 reads its own header too
    comm.barrier(timeout=20)
    started = time.monotonic()
    ep.close(timeout=40)
    assert time.monotonic() - started < 20
    refused(hmc.ClosedError, ep.resume, timeout=1)
    """
    run(source, tmp_path)


def test_weights_of_bfloat16(tmp_path: Path) -> None:
    source = """
    from hmc import tensors
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    words = np.ascontiguousarray((weights.view(np.uint32) >> 16).astype(np.uint16))
    short = tensors.view(hmc.Memory.from_array(words), "bfloat16", words.shape)
    x2, handle = ep.dispatch(x, ids, short, timeout=20)
    check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    """
    run(source, tmp_path)


def test_tensors_that_are_not_in_c_order_are_refused(tmp_path: Path) -> None:
    """As register() makes them of arrays in Fortran order, which have no gaps, and parts of wider ones."""
    source = """
    from hmc import tensors
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    def turned(array):
        return tensors.register(comm, np.asfortranarray(array))
    def part(array):
        return tensors.register(comm, np.concatenate([array, array], axis=1))[:, : array.shape[1]]
    for other in (turned, part):
        for changed in ((other(x), ids, weights), (x, other(ids), weights), (x, ids, other(weights))):
            message = refused(hmc.InvalidArgumentError, ep.dispatch, *changed, timeout=20)
            assert "pass one in C order" in message, message
    x2, handle = ep.dispatch(x, ids, weights, timeout=20)
    results = apply(ep, x2, handle)
    for other in (turned, part):
        assert "pass one in C order" in refused(hmc.InvalidArgumentError, ep.combine, other(results), handle, timeout=20)
    check_sum(ep, ep.combine(results, handle, timeout=20), x, ids, weights, handle)
    one = [tensors.register(comm, np.asfortranarray(array[:1])) for array in (x, ids, weights)]  # a single row has any stride
    x2, handle = ep.dispatch(*one, timeout=20)
    y = on_host(ep.combine(apply(ep, on_host(x2), handle), handle, timeout=20))
    check_sum(ep, y, x[:1], ids[:1], weights[:1], handle)
    comm.barrier(timeout=20)
    """
    run(source, tmp_path)


def test_results_of_bfloat16_without_ml_dtypes(tmp_path: Path) -> None:
    """For rows of a type that NumPy has: integers stand for bfloat16, as in arguments."""
    source = """
    sys.modules["ml_dtypes"] = None  # as where it is not installed
    for dtype in ("float32", "float16"):
        with buffer_of(comm, dtype=dtype, combine_dtype="bfloat16") as each:
            x = rows((1, comm.rank), 17, 33).astype(dtype)
            x2, handle = each.dispatch(x, np.arange(17)[:, None] % 13, np.ones((17, 1), np.float32), timeout=20)
            results = each.results(handle)
            assert results.dtype == np.uint16 and results.shape == x2.shape
            results[:] = x2.astype(np.float32).view(np.uint32) >> 16
            y = each.combine(results, handle, timeout=20)
            assert y.dtype == np.uint16
            assert np.array_equal((y.astype(np.uint32) << 16).view(np.float32), x)
            assert each.counters()["bytes_staged"] == 0
    """
    run(source, tmp_path)


def test_a_handle_answers_alike_and_finds_its_rows_once(tmp_path: Path) -> None:
    source = """
    for once in (False, True):
        with buffer_of(comm, once=once) as each:
            x, routes = rows((1, comm.rank), 17, 33), routing((1, comm.rank), 17, 5, 13)
            x2, handle = each.dispatch(x, *routes, timeout=20)
            experts, weights = handle._received.facts() if once else (handle.experts, handle.weights)
            assert np.array_equal(handle.experts, experts) and np.array_equal(handle.weights, weights)
            assert handle.experts is handle.experts and handle.weights is handle.weights
            for local in range(len(each.experts_of(comm.rank))):
                expected = np.nonzero((experts == local).any(axis=1))[0]
                assert np.array_equal(np.arange(len(x2))[handle.rows(local)], expected)
                assert handle.counts[local] == len(expected)
            check_sum(each, each.combine(apply(each, x2, handle), handle, timeout=20), x, *routes, handle)
    """
    run(source, tmp_path)


def test_an_expert_that_a_rank_lacks_is_named(tmp_path: Path) -> None:
    source = """
    with buffer_of(comm, experts=1, topk=1) as each:  # rank 1 has it
        _, handle = each.dispatch(rows((1,), 17, 33), *routing((1,), 17, 1, 1), timeout=20)
        message = refused(hmc.InvalidArgumentError, handle.rows, comm.rank)
        assert f"expert is {comm.rank}; this rank has {comm.rank} experts" in message, message
        refused(hmc.InvalidArgumentError, handle.rows, -1)
        each.release(handle, timeout=20)
    """
    run(source, tmp_path)


def test_calls_that_wait_for_another_thread_have_a_deadline(tmp_path: Path) -> None:
    source = """
    x = rows((1, comm.rank), 17, 33)
    ids, weights = routing((1, comm.rank), 17, 5, 13)
    first = ep.dispatch(x, ids, weights, timeout=20)
    if comm.rank == 0:
        made = []
        thread = threading.Thread(target=lambda: made.append(ep.dispatch(x, ids, weights, timeout=20)))
        thread.start()
        soon(ep._lock.locked)  # and rank 1 has not called dispatch
        for call in (ep.mask, lambda rank, timeout: ep.results(first[1], timeout=timeout)):
            assert "another thread's call" in refused(hmc.HmcTimeoutError, call, 1, timeout=0.1)
        comm.barrier(timeout=20)
        thread.join(20)
        second = made[0]
    else:
        comm.barrier(timeout=20)
        second = ep.dispatch(x, ids, weights, timeout=20)
    for x2, handle in (first, second):
        check_sum(ep, ep.combine(apply(ep, x2, handle), handle, timeout=20), x, ids, weights, handle)
    """
    run(source, tmp_path)
