"""exact=True from Python, against sums of fractions: every floating type, executor and form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PRELUDE = """
from fractions import Fraction
import itertools

comm = hmc.init()
me, n = comm.rank, comm.size

# Bits of the mantissa with the leading one, and the exponent of the least number.
FORMATS = {"float64": (53, -1074), "float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133)}

def rounded(value, dtype):
    bits, least = FORMATS[dtype]
    if value == 0:
        return Fraction(0)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - bits + 1, least)
    return round(value / unit) * unit  # to nearest even

def given(rank, dtype, count):
    rng = np.random.default_rng([rank, count])
    exponents = rng.integers(-6, 6, count) if dtype in ("float16", "bfloat16") else rng.integers(-30, 30, count)
    values = (rng.standard_normal(count) * 2.0 ** exponents).astype("f4")
    if dtype == "bfloat16":
        return (values.view("u4") >> 16 << 16).view("f4")  # as float32, whose values it has
    return values.astype("f8") * (1 + rng.standard_normal(count) / 7) if dtype == "float64" else values.astype(dtype)

def sent(values, dtype):
    return (values.view("u4") >> 16).astype("u2") if dtype == "bfloat16" else values

def given_as(array, dtype):
    return memoryview(array) if dtype == "bfloat16" else array  # which has no element type of its own

def read(array, dtype):
    return (array.astype("u4") << 16).view("f4") if dtype == "bfloat16" else array
"""

SUMS = (
    PRELUDE
    + """
for dtype in FORMATS:
    for count in (1, 17, 400):
        inputs = [given(rank, dtype, count) for rank in range(n)]
        want = [rounded(sum(Fraction(float(each[i])) for each in inputs), dtype) for i in range(count)]
        nbytes = sent(inputs[0], dtype).nbytes
        bits = set()
        for name in (None, *comm.plan("all_reduce", nbytes, dtype=dtype, exact=True).algorithms):
            array = sent(inputs[me], dtype).copy()
            comm.all_reduce(given_as(array, dtype), dtype=dtype, exact=True, algorithm=name, timeout=30)
            assert [Fraction(float(x)) for x in read(array, dtype)] == want, (dtype, count, name)
            bits.add(array.tobytes())
        assert len(bits) == 1
        out = np.zeros_like(sent(inputs[me], dtype))
        to, mine = given_as(out, dtype), given_as(sent(inputs[me], dtype), dtype)
        comm.iall_reduce(to, mine, dtype=dtype, exact=True).wait(30)
        assert out.tobytes() in bits
        comm.reduce(to if me == 0 else None, mine, root=0, dtype=dtype, exact=True, timeout=30)
        assert me != 0 or out.tobytes() in bits
        packed = np.concatenate([sent(inputs[me], dtype)] * n)
        comm.reduce_scatter(to, given_as(packed, dtype), dtype=dtype, exact=True, timeout=30)
        assert out.tobytes() in bits
        # Any order of the ranks.
        for order in itertools.islice(itertools.permutations(range(n)), 3):
            with comm.split(0, key=order[me]) as other:
                array = sent(inputs[me], dtype).copy()
                other.local[0].all_reduce(given_as(array, dtype), dtype=dtype, exact=True, timeout=30)
                assert array.tobytes() in bits
                comm.barrier(timeout=30)

whole = np.arange(9, dtype="i4") * (me + 1)
comm.all_reduce(whole, exact=True)
assert np.array_equal(whole, np.arange(9) * (n * (n + 1) // 2))
mean = given(me, "float32", 50)
comm.all_reduce(mean, op="avg", exact=True)
sums = [sum(Fraction(float(given(r, "float32", 50)[i])) for r in range(n)) for i in range(50)]
want = np.array([float(rounded(each, "float64")) for each in sums]) / n
assert np.array_equal(mean, want.astype("f4"))
for bad in (
    lambda: comm.all_reduce(np.zeros(4), op="max", exact=True),
    lambda: comm.iall_reduce(np.zeros(4), op="product", exact=True),
    lambda: comm.all_reduce(np.zeros(4), exact=1),
    lambda: comm.plan("broadcast", 8, exact=True),
):
    try:
        bad()
    except (TypeError, hmc.InvalidArgumentError):
        pass
    else:
        raise SystemExit("accepted")
comm.barrier(timeout=30)
print("exact")
"""
)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("fused", ["1", "0"])
def test_sums_are_rounded_once(run_job: Callable[..., str], ranks: int, fused: str) -> None:
    assert run_job(SUMS, ranks=ranks, environment={"HMC_FUSED": fused}).count("exact") == ranks


DISAGREE = """
comm = hmc.init()
array = np.ones(1000, "f4")
try:
    comm.all_reduce(array, exact=comm.rank == 0, timeout=30)
except hmc.InvalidArgumentError as error:
    assert "exact sum" in str(error) and "f32, sum" in str(error), error
    print("told")
"""


def test_ranks_that_disagree_are_told(run_job: Callable[..., str]) -> None:
    assert run_job(DISAGREE).count("told") == 2
