"""JAX's arrays: every type as it lies, and never written, for JAX takes them as constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Pair

import hmc

jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
jnp: Any = pytest.importorskip("jax.numpy")

# The last ones have no format of the buffer protocol, and come by DLPack.
TYPES = ["float32", "int8", "bool_", "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.mark.parametrize("name", TYPES)
def test_arrays_go_out_as_they_lie_and_are_never_written(pair: Pair, name: str) -> None:
    array = (jnp.arange(2001) % 120).astype(getattr(jnp, name))
    wanted = np.asarray(array).tobytes()
    got = np.zeros(len(wanted), np.uint8)
    receiving = pair.ba.irecv(got, tag=3)
    pair.ab.send(array, tag=3, timeout=20)
    receiving.wait(20)
    assert got.tobytes() == wanted
    with pytest.raises(hmc.InvalidArgumentError, match="read-only"):
        pair.ab.irecv(array, tag=3)
    with pytest.raises(hmc.InvalidArgumentError, match="read-only"):
        pair.b.register(array)
    shared = pair.b.register(array, access="r")
    pair.ab.get(pair.local[: len(wanted)], pair.ab.import_buffer(shared.descriptor(), timeout=20)).wait(20)
    assert pair.local.numpy()[: len(wanted)].tobytes() == wanted


def test_buffers_are_arrays_of_jax_without_a_copy(pair: Pair) -> None:
    pair.local.numpy()[:4096] = np.arange(4096) % 251
    array = jnp.from_dlpack(pair.local[:4096], copy=False)
    assert np.array_equal(np.asarray(array), np.arange(4096) % 251)
    assert array.unsafe_buffer_pointer() == pair.local.numpy().ctypes.data
