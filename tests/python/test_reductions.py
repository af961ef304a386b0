"""all_reduce and its kin from Python, against NumPy: arrays of every kind, devices, doors and forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hmc.testing

ARRAYS = """
comm = hmc.init()
me, n = comm.rank, comm.size

def given(rank, dtype, count=1000):
    values = np.random.default_rng(rank).integers(0, 100, count)
    return values.astype(dtype)

folds = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
for dtype in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"):
    for op, fold in folds.items():
        if op == "product" and dtype == "f2":
            continue  # NumPy rounds after each factor
        wide = "f4" if dtype == "f2" else dtype
        want = given(0, dtype).astype(wide)
        for rank in range(1, n):
            want = fold(want, given(rank, dtype).astype(wide))
        want = want.astype(dtype)
        out = np.zeros(1000, dtype)
        comm.all_reduce(out, given(me, dtype), op=op, timeout=30)
        assert np.array_equal(out, want), (dtype, op)
        grad = given(me, dtype)
        comm.all_reduce(grad, op=op)
        assert np.array_equal(grad, want), (dtype, op, "in place")
bits = given(me, "u4")
comm.all_reduce(bits, op="bxor")
assert np.array_equal(bits, np.bitwise_xor.reduce([given(r, "u4") for r in range(n)]))
mean = given(me, "f4")
comm.local[0].all_reduce(mean, op="avg")
assert np.array_equal(mean, sum(given(r, "f4") for r in range(n)) / np.float32(n))
scaled = given(me, "f4")
comm.all_reduce(scaled, op="premul_sum", factor=0.5)
assert np.array_equal(scaled, sum(given(r, "f4") * np.float32(0.5) for r in range(n)))
for bad in ("2", [2], 10**400):
    try:
        comm.all_reduce(scaled, op="premul_sum", factor=bad)
    except (TypeError, hmc.InvalidArgumentError) as error:
        assert "factor" in str(error), error
    else:
        raise SystemExit("accepted a factor")

large = np.random.default_rng(me).standard_normal(700_001).astype("f4")
want = np.random.default_rng(0).standard_normal(700_001).astype("f4")
for rank in range(1, n):
    want = want + np.random.default_rng(rank).standard_normal(700_001).astype("f4")
comm.iall_reduce(large).wait(30)
assert np.array_equal(large, want), "not in rank order"

block = np.zeros(100_000, "f4")
comm.reduce_scatter(block, want[: 100_000 * n] * (me + 1), timeout=30)
assert np.allclose(block, want[100_000 * me : 100_000 * (me + 1)] * (n * (n + 1) // 2), rtol=1e-5)
counts = [0, 5, 7][:n]
uneven = np.zeros(counts[me], "i4")
comm.reduce_scatter(uneven, np.arange(sum(counts), dtype="i4"), counts=counts)
assert np.array_equal(uneven, n * np.arange(sum(counts), dtype="i4")[sum(counts[:me]) :][: counts[me]])

rooted = given(me, "i8")
root = n // 2
result = np.zeros(1000, "i8") if me == root else None
comm.reduce(result, rooted, root=root)
assert me != root or np.array_equal(result, sum(given(r, "i8") for r in range(n)))

everything = np.zeros((n, 1000), "i8")
comm.all_gather(everything, rooted)
assert all(np.array_equal(everything[r], given(r, "i8")) for r in range(n))
back = np.zeros((n, 1000), "i8") if me == 0 else None
comm.gather(back, rooted, root=0)
piece = np.zeros(1000, "i8")
comm.scatter(piece, back, root=0, timeout=30)
assert np.array_equal(piece, rooted)
news = given(7, "f8") if me == n - 1 else np.zeros(1000)
comm.broadcast(news, root=n - 1)
assert np.array_equal(news, given(7, "f8"))

buffer = comm.buffer(4000)
buffer.numpy("f4")[:] = me + 1
comm.all_reduce(buffer, dtype="float32")
assert np.array_equal(buffer.numpy("f4"), np.full(1000, n * (n + 1) / 2, "f4"))

for dtype in ("f32", "<f4", "f4", np.float32, np.dtype("f4"), "single"):
    comm.all_reduce(buffer, op="max", dtype=dtype)

for bad in (
    lambda: comm.all_reduce(np.zeros(4, bool)),
    lambda: comm.all_reduce(np.zeros(4, ">f4")),
    lambda: comm.all_reduce(np.zeros(4, "c8")),
    lambda: comm.all_reduce(comm.buffer(16)),
    lambda: comm.all_reduce(np.zeros(4), op="mean"),
    lambda: comm.all_reduce(np.zeros(4), op="band"),
    lambda: comm.all_reduce(np.zeros(4), op="premul_sum"),
    lambda: comm.all_reduce(np.zeros(4), np.zeros(5)),
    lambda: comm.broadcast(np.zeros(4), root=n),
    lambda: comm.all_reduce(np.zeros(4, "f4"), np.zeros(4, "i4")),
    lambda: comm.reduce(np.zeros(4, "f4"), np.zeros(4, "i4")),
    lambda: comm.all_reduce(comm.buffer(16), dtype="i8"),
    lambda: comm.all_reduce({comm.local[0]: np.zeros(4)}, np.zeros(4)),
    lambda: comm.broadcast({comm.local[0]: None}),
    lambda: comm.reduce_scatter(np.zeros(8, "f4"), np.zeros(8 * n, "f4"), counts=[2**62 + 8] * n),
):
    try:
        bad()
    except (TypeError, ValueError, hmc.InvalidArgumentError):
        pass
    else:
        raise SystemExit("accepted")
comm.barrier(timeout=30)
"""

TORCH = """
import asyncio
import torch
comm = hmc.init()
n = comm.size
for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.float8_e4m3fn):
    made = [(torch.arange(300) % 3 + rank).to(dtype) for rank in range(n)]
    tensor = made[comm.rank].clone()
    comm.all_reduce(tensor)
    want = sum(each.to(torch.float64) for each in made).to(dtype)
    assert torch.equal(tensor.to(torch.float64), want.to(torch.float64)), dtype
empty = torch.zeros(0)
comm.all_reduce(empty)
async def main():
    tensor = torch.full((300_000,), float(comm.rank + 1))
    await comm.iall_reduce(tensor)
    assert torch.equal(tensor, torch.full((300_000,), n * (n + 1) / 2))
asyncio.run(main())
comm.barrier(timeout=30)
"""

# Two Members in each of two processes, on four cards of several vendors and sizes of reductions.
MEMBERS = """
devices = [["cuda:0", "mlu:0"], ["rocm:1", "cpu"]]
import os
rank = int(os.environ["HMC_RANK"])
comm = hmc.init(devices=devices[rank])
for count in (0, 1, 1000, 200_003):
    want = sum(np.random.default_rng(r).standard_normal(count).astype("f4") for r in range(4))
    mine, both = {}, {}
    for member in comm.local:
        memory = hmc.Memory(4 * count, device=str(member.device)) if count else hmc.Memory(0, device=str(member.device))
        memory.copy_from(np.random.default_rng(member.rank).standard_normal(count).astype("f4").view("u1"))
        mine[member] = memory
    comm.all_reduce(mine, dtype="f32", timeout=30)
    for memory in mine.values():
        got = np.zeros(4 * count, "u1")
        memory.copy_to(got)
        assert np.allclose(got.view("f4"), want, atol=1e-5), count
    gathered = {m: (np.zeros(4 * count * 4, "u1"), memory) for m, memory in mine.items()}
    comm.all_gather(gathered, timeout=30)
    comm.broadcast(mine, root=3, timeout=30)
comm.barrier(timeout=30)
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_arrays_against_numpy(run_job: Callable[..., str], ranks: int) -> None:
    run_job(ARRAYS, ranks=ranks, timeout=110)


def test_torch_tensors_and_asyncio(run_job: Callable[..., str]) -> None:
    pytest.importorskip("torch")
    run_job(TORCH, timeout=110)


@pytest.mark.parametrize("transports", ["shm,ipc,staging", "tcp,staging"])
def test_members_on_cards_of_several_vendors(run_job: Callable[..., str], transports: str) -> None:
    run_job(MEMBERS, environment={**hmc.testing.environment(), "HMC_TRANSPORTS": transports}, timeout=110)
