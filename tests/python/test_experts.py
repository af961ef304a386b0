"""hmc.experts: dispatch and combine against the dense computation, over shm and tcp, on one to four ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hmc.experts
import hmc.testing
from hmc._core import weighted_sum

PRELUDE = """
import hmc.experts
from experts_layer import *
"""
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])


@pytest.fixture
def run_experts(run_job: Callable[..., str]) -> Callable[..., str]:
    def run(source: str, ranks: int, transport: str = "shm", **more: object) -> str:
        import textwrap

        return run_job(PRELUDE + textwrap.dedent(source), ranks, environment={"HMC_TRANSPORTS": f"{transport},local"}, **more)

    return run


@TRANSPORTS
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_random_routing_equals_the_dense_computation(run_experts: Callable[..., str], ranks: int, transport: str) -> None:
    source = """
    with hmc.init() as comm, buffer_of(comm) as ep:
        for number in range(100):
            def size(rank):
                random = np.random.default_rng([number, rank, 5])
                return int(random.integers(0, 18)), int(random.integers(1, 6))
            def sent(rank):
                tokens, topk = size(rank)
                return rows((number, rank), tokens, 33), routing((number, rank), tokens, topk, 13)[0]
            tokens, topk = size(comm.rank)
            x = rows((number, comm.rank), tokens, 33)
            ids, weights = routing((number, comm.rank), tokens, topk, 13)
            x2, handle = ep.dispatch(x, ids, weights, timeout=20)
            check_x2(ep, x2, handle, sent)
            assert handle.counts.sum() == len(x2)
            y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
            assert y.dtype == np.float32 and not handle.lost.any()
            check_sum(ep, y, x, ids, weights, handle)
        assert all(ep.alive)
    print("done")
    """
    assert run_experts(source, ranks, transport, timeout=100).count("done") == ranks


@TRANSPORTS
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tokens_that_go_to_each_rank_once(run_experts: Callable[..., str], ranks: int, transport: str) -> None:
    source = """
    with hmc.init() as comm, buffer_of(comm, once=True) as ep:
        for number in range(40):
            random = np.random.default_rng([number, comm.rank])
            tokens, topk = int(random.integers(0, 18)), int(random.integers(1, 6))
            x = rows((number, comm.rank), tokens, 33)
            ids, weights = routing((number, comm.rank), tokens, topk, 13)
            x2, handle = ep.dispatch(x, ids, weights, timeout=20)
            assert len(x2) == len(handle.sources) == len(set(map(tuple, handle.sources.tolist())))
            assert handle.counts.tolist() == [len(handle.rows(e)) for e in range(len(ep.experts_of(comm.rank)))]
            for row, (rank, token), own in zip(x2, handle.sources, handle.experts, strict=True):
                random = np.random.default_rng([number, rank])
                there, k = int(random.integers(0, 18)), int(random.integers(1, 6))
                assert np.array_equal(row, rows((number, rank), there, 33)[token])
                chosen = routing((number, rank), there, k, 13)[0][token]
                mine = [e - ep.experts_of(comm.rank).start for e in chosen if e in ep.experts_of(comm.rank)]
                assert mine and own[own >= 0].tolist() == mine
            y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
            assert not handle.lost.any()
            check_sum(ep, y, x, ids, weights, handle)
    print("done")
    """
    assert run_experts(source, ranks, transport).count("done") == ranks


@TRANSPORTS
@pytest.mark.parametrize("case", ["one expert", "nobody", "one rank sends", "all tokens, top 1", "more ranks than experts"])
def test_uneven_loads(run_experts: Callable[..., str], case: str, transport: str) -> None:
    source = f"""
    case = {case!r}
    experts = 2 if case == "more ranks than experts" else 13
    with hmc.init() as comm, buffer_of(comm, experts=experts, hidden=1001, tokens=64, topk=min(5, experts)) as ep:
        for number in range(5):  # both slots, and memory that has grown
            tokens = 64 if case != "one rank sends" or comm.rank == 1 else 0
            ids, weights = routing((number, comm.rank), tokens, min(5, experts), experts)
            if case == "one expert":
                ids[:] = -1
                ids[:, 2] = 7
            if case == "nobody":
                ids[:] = -1
            if case == "all tokens, top 1":
                ids, weights = np.maximum(ids[:, :1], 0), weights[:, :1]
            x = rows((number, comm.rank), tokens, 1001)
            x2, handle = ep.dispatch(x, ids, weights, timeout=20)
            if case == "one expert":
                assert len(x2) == (3 * 64 if 7 in ep.experts_of(comm.rank) else 0)
            y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
            check_sum(ep, y, x, ids, weights, handle)
    print("done")
    """
    assert run_experts(source, 3, transport).count("done") == 3


@TRANSPORTS
def test_two_dispatches_in_flight_and_two_buffers(run_experts: Callable[..., str], transport: str) -> None:
    """A dispatch overwrites nothing of the one before it. Buffers of one Communicator are apart, and close in any order."""
    source = """
    with hmc.init() as comm:
        one, two = buffer_of(comm), buffer_of(comm, experts=9, hidden=64, topk=3)
        held = []
        for number in range(12):
            for ep, experts, hidden, topk in ((one, 13, 33, 5), (two, 9, 64, 3)):
                x = rows((number, comm.rank), 17, hidden)
                ids, weights = routing((number, comm.rank), 17, topk, experts)
                held.append((ep, x, ids, weights, *ep.dispatch(x, ids, weights, timeout=20)))
            if number == 0:
                continue
            for ep, x, ids, weights, x2, handle in held[:2]:
                y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
                check_sum(ep, y, x, ids, weights, handle)
            del held[:2]
        for ep, x, ids, weights, x2, handle in held:
            y = ep.combine(apply(ep, x2, handle), handle, timeout=20)
            check_sum(ep, y, x, ids, weights, handle)
        for ep in (one, two) if comm.rank == 0 else (two, one):
            ep.close(timeout=20)
            ep.close()
    print("done")
    """
    assert run_experts(source, 3, transport).count("done") == 3


@TRANSPORTS
def test_calls_that_are_polled_end(run_experts: Callable[..., str], transport: str) -> None:
    source = """
    import re
    def polled(call):
        end = time.monotonic() + 40
        while True:
            try:
                return call()
            except hmc.HmcTimeoutError as error:
                late = re.search("ranks? ([0-9, ]+) did not answer", str(error))
                assert "own rows" in str(error) if late is None else str(comm.rank) not in late[1].split(", "), error
                assert time.monotonic() < end, error
                call = lambda: ep.resume(timeout=0)
    with hmc.init() as comm, buffer_of(comm) as ep:
        for number in range(6):
            x = rows((number, comm.rank), 17, 33)
            ids, weights = routing((number, comm.rank), 17, 5, 13)
            x2, handle = polled(lambda: ep.dispatch(x, ids, weights, timeout=0))
            results = apply(ep, x2, handle)
            y = polled(lambda: ep.combine(results, handle, timeout=0))
            check_sum(ep, y, x, ids, weights, handle)
        assert all(ep.alive)
        comm.barrier(timeout=20)
    print("done")
    """
    assert run_experts(source, 2, transport, timeout=60).count("done") == 2


def test_results_are_the_same_bytes_on_any_number_of_ranks(run_experts: Callable[..., str]) -> None:
    """Random bfloat16, not integers: the sum of a token depends on the order of its choices alone."""
    source = """
    import hashlib
    with hmc.init() as comm:
        ep = hmc.experts.Buffer(comm, experts=16, hidden=130, tokens=24, topk=6, timeout=30)
        sums = []
        for number in range(4):
            random = np.random.default_rng([number])
            x = random.integers(0, 1 << 15, (24, 130)).astype(np.uint16) & 0x3FFF
            ids = np.argsort(random.random((24, 16)), axis=1)[:, :6]
            weights = random.random((24, 6), np.float32)
            part = slice(comm.rank * 24 // comm.size, (comm.rank + 1) * 24 // comm.size)
            x2, handle = ep.dispatch(x[part], ids[part], weights[part], timeout=20)
            results = ep.results(handle)
            assert results.dtype == np.uint16
            for local, expert_number in enumerate(ep.experts_of(comm.rank)):
                results[handle.rows(local)] = x2[handle.rows(local)] ^ (expert_number << 3)
            sums.append(ep.combine(results, handle, timeout=20))
        whole = [np.frombuffer(b"".join(comm.exchange_bytes(y.tobytes(), timeout=20)), np.uint16) for y in sums]
        ep.close()
    print("digest", hashlib.sha256(b"".join(y.tobytes() for y in whole)).hexdigest())
    """
    printed = "".join(run_experts(source, ranks) for ranks in (1, 2, 3, 4))
    digests = {line.split("digest ")[1] for line in printed.splitlines() if "digest" in line}
    assert len(digests) == 1, printed


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("hidden", [1, 7, 64])
def test_weighted_sum_is_rounded_to_nearest(dtype: str, hidden: int) -> None:
    random = np.random.default_rng(3)
    values = random.standard_normal((5, 3, hidden)).astype(np.float32)
    weights = random.random((5, 3), np.float32)
    bits, step = _as_type(values, dtype)
    exact = np.einsum("tk,tkh->th", weights.astype(np.float64), _as_f64(bits, dtype))
    out = np.empty((5, bits.shape[2]), np.uint8)
    weighted_sum(out, bits, weights, dtype)
    error = np.abs(_as_f64(out, dtype) - exact)
    scale = np.einsum("tk,tkh->th", weights.astype(np.float64), np.abs(_as_f64(bits, dtype)))
    assert (error <= np.abs(exact) * step / 2 * 1.001 + scale * 2.0**-22).all()


def test_weighted_sum_keeps_nan_and_infinity() -> None:
    values = np.array([[[1.0, np.nan, np.inf, -np.inf]], [[0.0, -0.0, 3e38, 1e-40]]], np.float32)
    bits, _ = _as_type(values, "bfloat16")
    out = np.empty((2, 8), np.uint8)
    weighted_sum(out, bits, np.ones((2, 1), np.float32), "bfloat16")
    found = _as_f64(out, "bfloat16")
    assert np.array_equal(found, _as_f64(bits, "bfloat16")[:, 0], equal_nan=True)
    overflow = np.array([[[0x7F7F, 0x7F7F]]], np.uint16).view(np.uint8)
    weighted_sum(out[:1, :4], overflow, np.full((1, 1), 2, np.float32), "bfloat16")
    assert np.isposinf(_as_f64(out[:1, :4].copy(), "bfloat16")).all()


def _as_type(values: np.ndarray, dtype: str) -> tuple[np.ndarray, float]:
    """(bytes, distance of neighbours at 1)."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), 2.0**-7
    return values.astype(dtype).view(np.uint8), float(np.finfo(dtype).eps)


def _as_f64(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(dtype).astype(np.float64)


def test_fp8_with_scales(run_experts: Callable[..., str]) -> None:
    """Rows and scales arrive as they were sent; results are bfloat16."""
    source = """
    with hmc.init() as comm:
        ep = hmc.experts.Buffer(comm, experts=6, hidden=256, tokens=9, topk=4, dtype="float8_e4m3fn", timeout=30)
        def sent(rank, number):
            random = np.random.default_rng([rank, number])
            return random.integers(0, 256, (9, 256), np.uint8), random.random((9, 2), np.float32)
        for number in range(5):
            x, scales = sent(comm.rank, number)
            ids, weights = routing((number, comm.rank), 9, 4, 6)
            (x2, scales2), handle = ep.dispatch((x, scales), ids, weights, timeout=20)
            assert x2.shape == (len(scales2), 256) and scales2.shape[1] == 2 and scales2.dtype == np.float32
            for row, scale, (rank, token) in zip(x2, scales2, handle.sources, strict=True):
                x_there, scales_there = sent(rank, number)
                assert np.array_equal(row, x_there[token]) and np.array_equal(scale, scales_there[token])
            results = np.full((len(x2), 256), 0x3F80, np.uint16)  # 1.0
            y = ep.combine(results, handle, timeout=20)
            total = np.where(ids >= 0, weights, 0).sum(axis=1)
            assert np.array_equal((y.astype(np.uint32) << 16).view(np.float32), np.broadcast_to(total[:, None], (9, 256)))
        for wrong in (x, [x, scales], (), (x,), (x, scales, scales)):
            assert "x: pass (x, scales)" in refused(hmc.InvalidArgumentError, ep.dispatch, wrong, ids, weights)
        ep.close()
    print("done")
    """
    assert run_experts(source, 3).count("done") == 3


@pytest.mark.parametrize("vendors", ["cuda,rocm", "mlu,musa", "hygon,cuda"])
def test_rows_of_simulated_devices(run_job: Callable[..., str], vendors: str) -> None:
    """Each rank has a vendor of its own; x2 and y are on its device."""
    source = """
    import os
    from hmc import tensors
    with hmc.init() as comm, buffer_of(comm) as ep:
        device = os.environ["VENDORS"].split(",")[comm.rank] + ":1"
        def on_device(array):
            memory = hmc.Memory(array.nbytes, device)
            if array.nbytes:
                memory.copy_from(array)
            return tensors.view(memory, array.dtype, array.shape)
        def on_host(tensor):
            assert tensor.device == device
            host = np.empty(tensor.shape, np.float32)
            if host.size:
                tensor.memory().copy_to(host)
            return host
        for number, tokens in enumerate((17, 0, 5, 1)):
            x = rows((number, comm.rank), tokens, 33)
            ids, weights = routing((number, comm.rank), tokens, 5, 13)
            x2, handle = ep.dispatch(on_device(x), on_device(ids), on_device(weights), timeout=20)
            results = on_device(apply(ep, on_host(x2), handle))
            y = ep.combine(results, handle, timeout=20)
            check_sum(ep, on_host(y), x, ids, weights, handle)
    print("done")
    """
    import textwrap

    environment = {**hmc.testing.environment(*vendors.split(",")), "VENDORS": vendors}
    assert run_job(PRELUDE + textwrap.dedent(source), 2, environment=environment).count("done") == 2


def test_torch_tensors(run_experts: Callable[..., str]) -> None:
    pytest.importorskip("torch")
    source = """
    import torch
    with hmc.init() as comm:
        ep = hmc.experts.Buffer(comm, experts=6, hidden=40, tokens=9, topk=4, timeout=30)
        refused(hmc.InvalidArgumentError, ep.dispatch, torch.zeros(1, 40), torch.zeros(1, 1).bfloat16(), torch.ones(1, 1))
        for number, tokens in enumerate((9, 7, 0, 3)):
            x = torch.from_numpy(rows((number, comm.rank), tokens, 40)).bfloat16().requires_grad_()
            ids, weights = (torch.tensor(part) for part in routing((number, comm.rank), tokens, 4, 6))
            x2, handle = ep.dispatch(x, ids.long(), weights.bfloat16() if number % 2 else weights, timeout=20)
            assert x2.dtype == torch.bfloat16 and x2.device.type == "cpu"
            results = ep.results(handle)
            results.copy_(x2)
            y = ep.combine(results, handle, timeout=20)
            assert y.dtype == torch.bfloat16
            total = torch.where(ids >= 0, weights, 0).sum(1, keepdim=True) * x.detach().float()
            assert torch.equal(y, total.bfloat16())
            assert all(part.untyped_storage().resizable() for part in (x, ids, weights, y))
        ep.close()
    print("done")
    """
    assert run_experts(source, 2).count("done") == 2


def test_torch_tensors_without_plain_memory(run_experts: Callable[..., str]) -> None:
    """A negative view is read as it shows; what has no dense memory is refused, and changes nothing."""
    pytest.importorskip("torch")
    source = """
    import torch
    with hmc.init() as comm, buffer_of(comm, hidden=8, topk=1) as ep:
        x, ids, weights = torch.ones(3, 8), torch.zeros((3, 1), dtype=torch.int32), torch.ones(3, 1)
        for other in (lambda part: part.to("meta"), torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr):
            for changed in ((other(x), ids, weights), (x, other(ids), weights), (x, ids, other(weights))):
                refused(hmc.InvalidArgumentError, ep.dispatch, *changed)
        x2, handle = ep.dispatch(torch._neg_view(x), ids, torch._neg_view(weights), timeout=20)
        assert torch.equal(x2, -x)
        refused(hmc.InvalidArgumentError, ep.combine, x2.to_sparse(), handle)
        assert torch.equal(ep.combine(torch._neg_view(x2), handle, timeout=20), -x)
    print("done")
    """
    assert run_experts(source, 1).count("done") == 1
