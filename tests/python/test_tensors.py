"""hmc.tensors: indices against NumPy, blocks and transfers by index, typed views out, on CPU memory and simulated devices."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from patterns import pattern

import hmc
import hmc.testing
from hmc import tensors
from hmc.errors import InvalidArgumentError
from hmc.tensors import _dtypes


def numbered(shape: tuple[int, ...], dtype: Any, seed: int) -> NDArray[Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return pattern(size, seed).view(dtype).reshape(shape)


def random_index(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index of every kind; some axes are left out, at the end or where "..." is."""
    index: list[Any] = []
    before, after = sorted(rng.integers(0, len(shape) + 1, 2))
    dots = bool(rng.integers(0, 2))
    for axis, extent in enumerate(shape):
        if axis == before and dots:
            index.append(...)
        if before <= axis < after or (axis >= after and not dots):
            continue
        kind = rng.integers(0, 3)
        if kind == 0 and extent > 0:
            index.append(int(rng.integers(-extent, extent)))
        elif kind == 1:
            start, stop = (int(value) for value in rng.integers(-extent - 1, extent + 2, 2))
            index.append(slice(start, stop, int(rng.integers(1, 4))))
        else:
            index.append(rng.integers(-extent, extent, rng.integers(0, 5)) if extent > 0 else [])
    return tuple(index)


def chosen(array: NDArray[Any], index: tuple[Any, ...]) -> NDArray[Any]:
    """NumPy's elements of the same index, axis after axis."""
    missing = array.ndim - sum(part is not ... for part in index)
    at = next((at for at, part in enumerate(index) if part is ...), len(index))
    full = [*index[:at], *[slice(None)] * missing, *index[at + 1 :]]
    for axis in reversed(range(array.ndim)):
        part = np.asarray(full[axis], np.int64) if isinstance(full[axis], list) else full[axis]
        array = array[(slice(None),) * axis + (part,)]
    return array


@pytest.mark.parametrize("seed", range(8))
def test_any_index_gives_numpys_elements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with hmc.Context() as context:
        for turn in range(40):
            shape = tuple(int(extent) for extent in rng.integers(0 if turn % 5 == 0 else 1, 7, rng.integers(1, 5)))
            array = numbered(shape, rng.choice(["u1", "i2", "i4", "c16"]), turn).transpose(rng.permutation(len(shape)))
            whole = tensors.register(context, array)
            assert (whole.shape, whole.nbytes, whole.dtype) == (array.shape, array.nbytes, array.dtype.name)
            index = random_index(rng, array.shape)
            part, want = whole[index], chosen(array, index)
            assert part.shape == want.shape, index
            raw = whole.buffer.numpy()
            nbytes, offsets = part.blocks()
            got = b"".join(raw[at : at + nbytes].tobytes() for at in offsets)
            assert got == want.tobytes(), index
            if part.nbytes:
                small = part.blocks(1)
                assert raw[small.offsets].tobytes() == want.tobytes()
            if not any(isinstance(each, list | np.ndarray) for each in index):
                assert part.numpy().tobytes() == np.asarray(part).tobytes() == want.tobytes()
                exported = np.from_dlpack(part)
                assert (exported.shape, exported.dtype, exported.tobytes()) == (want.shape, want.dtype, want.tobytes())
            whole.buffer.close(timeout=20)


def test_contiguous_parts_are_one_block() -> None:
    with hmc.Context() as context:
        cache = tensors.register(context, numbered((4, 10, 2, 16), "u2", 1))
        assert [cache.blocks().nbytes, cache[2].blocks().nbytes] == [4 * 640, 640]
        assert cache[1, 3:7].blocks() == (256, [640 + 3 * 64])
        pages = cache[1, [7, 2]].blocks()
        assert (pages.nbytes, pages.offsets.tolist()) == (64, [640 + 7 * 64, 640 + 2 * 64])
        heads = cache[:, 0, 1:]
        assert (heads.strides, heads.blocks().nbytes, heads.blocks(8).offsets[:5].tolist()) == (
            (640, 32, 2),
            32,
            [32, 40, 48, 56, 672],
        )


def test_pages_travel_by_index(pair: Any) -> None:
    ours, theirs = numbered((3, 20, 2, 33), "i2", 2), numbered((5, 16, 2, 33), "i2", 3)
    before = theirs.copy()
    local, target = tensors.register(pair.a, ours), tensors.register(pair.b, theirs)
    remote = tensors.view(pair.ab.import_buffer(target.buffer.descriptor(), timeout=20), "int16", theirs.shape)
    pages, others = [19, 0, 7], [1, 15, 2]
    batch = pair.ab.prepare_blocks(*tensors.pairs(local[2, pages], remote[4, others]))
    assert (batch.blocks, batch.nbytes) == (3, 3 * 2 * 33 * 2)
    pair.ab.put_blocks(batch, notify=3).wait(20)
    pair.ba.wait_notify(3, timeout=20)
    before[4, others] = ours[2, pages]
    assert np.array_equal(theirs, before)
    # One head of each page only, and the other way.
    want = ours.copy()
    want[0, 5:8, 1] = theirs[1, [3, 1, 0], 0]
    pair.ab.get_blocks(pair.ab.prepare_blocks(*tensors.pairs(local[0, 5:8, 1], remote[1, [3, 1, 0], 0]))).wait(20)
    assert np.array_equal(ours, want)
    for wrong in (remote[4, [1]], remote[4, others, 0]):
        with pytest.raises(hmc.InvalidArgumentError, match="parts of one shape"):
            tensors.pairs(local[2, pages], wrong)
    with pytest.raises(hmc.UnsupportedError, match="at the peer"):
        remote.numpy()


def test_what_is_exported_keeps_the_memory() -> None:
    exported = []
    for seed in range(50):
        memory = hmc.Memory(6000)
        memory.copy_from(pattern(6000, seed))
        exported.append(np.from_dlpack(tensors.view(memory, "i2", (10, 20), offset=seed * 2)[1:, ::3]))
        del memory
    gc.collect()
    for seed, array in enumerate(exported):
        whole = pattern(6000, seed)[seed * 2 : seed * 2 + 400].view("i2").reshape(10, 20)
        assert np.array_equal(array, whole[1:, ::3])
    unused = tensors.view(hmc.Memory(100), "f4", (5, 5)).__dlpack__()
    del unused
    gc.collect()


def test_empty_tensors() -> None:
    with hmc.Context() as context:
        for shape in ((0,), (3, 0), (0, 5, 2)):
            whole = tensors.register(context, np.zeros(shape, "f8"))
            assert whole.blocks().offsets.size == whole.nbytes == 0
            assert whole.numpy().shape == np.from_dlpack(whole).shape == shape
        scalar = tensors.register(context, np.array(7, "i4"))
        assert (scalar.shape, int(scalar.numpy()), scalar.blocks()) == ((), 7, (4, [0]))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ((0, 0, 0), "3 indices"),
        ((4,), "axis 0 lies outside"),
        ((0, [1, 6]), "index 6 of axis 1"),
        ((slice(None, None, -1),), "steps are positive"),
        ((..., ...), "two '...'"),
        ((0.5,), "pass an integer"),
        ((np.ones(4, bool),), "list of integers"),
        ((None,), "pass an integer"),
        (([[1]],), "one-dimensional"),
    ],
    ids=str,
)
def test_bad_indices(index: Any, words: str) -> None:
    cache = tensors.view(hmc.Memory(4 * 6 * 4), np.float32, (4, 6))
    with pytest.raises(hmc.InvalidArgumentError, match=words):
        cache[index]


def test_bad_views() -> None:
    memory = hmc.Memory(100)
    for arguments in ((memory, "f4", (5, 6)), (memory, "f4", 26), (memory, "f4", (2, 2), (400, 4)), (memory, "f4", (-1,))):
        with pytest.raises(hmc.InvalidArgumentError):
            tensors.view(*arguments)
    for dtype in ("O", ">f4", "nonsense", "U4"):
        with pytest.raises(hmc.InvalidArgumentError, match="pass one of"):
            tensors.view(memory, dtype, 1)
    with pytest.raises(TypeError, match="dtype must be an element type, not None"):
        tensors.view(memory, None, 1)
    with pytest.raises(hmc.InvalidArgumentError, match="pass a Memory"):
        tensors.view(b"abc", "u1", 1)  # type: ignore[arg-type]
    with pytest.raises(hmc.InvalidArgumentError, match="divisor"):
        tensors.view(memory, "u1", (10, 10)).blocks(7)
    chosen_by_list = tensors.view(memory, "u1", (10, 10))[[1, 2]]
    for call in (chosen_by_list.numpy, chosen_by_list.__dlpack__, lambda: chosen_by_list.strides):
        with pytest.raises(hmc.UnsupportedError, match="no strides"):
            call()
    with hmc.Context() as context:
        with pytest.raises(hmc.InvalidArgumentError, match="has gaps"):
            tensors.register(context, np.zeros((4, 6))[:, :3])
        with pytest.raises(hmc.InvalidArgumentError, match="element type and shape"):
            tensors.register(context, object())


@pytest.mark.parametrize("vendor", ["cuda", "rocm", "hygon", "mlu", "musa"])
def test_memory_of_simulated_devices(run_script: Callable[..., str], vendor: str) -> None:
    run_script(f"vendor = {vendor!r}" + """
from hmc import tensors
from hmc.errors import InvalidArgumentError
from hmc.tensors import _dtypes
with hmc.Context() as a, hmc.Context() as b:
    ab = a.connect(b.addresses[0], timeout=20)
    memory = hmc.Memory(4 * 6 * 10 * 4, vendor + ":1")
    memory.copy_from(pattern(960, 1))
    host = pattern(960, 1).view("f4").reshape(4, 6, 10)
    local = tensors.register(a, tensors.view(memory, "f4", (4, 6, 10)))
    assert (local.device, local.dtype, local.shape) == (vendor + ":1", "float32", (4, 6, 10))
    # Typed and shaped DLPack out and in again, with an offset.
    for part, want in ((local[1], host[1]), (local[2, 3:], host[2, 3:]), (local[3, 5, 2], host[3, 5, 2])):
        assert part.__dlpack_device__() == memory.__dlpack_device__()
        if vendor == "mlu":
            try:
                part.__dlpack__()
            except hmc.UnsupportedError as error:
                assert "mlu:1" in str(error)
            else:
                raise AssertionError("supported: say so in the documentation")
        back = hmc.Memory.from_array(part.memory() if vendor == "mlu" else part)
        got = np.zeros(want.nbytes, np.uint8)
        back.copy_to(got)
        assert back.device == local.device and got.tobytes() == want.tobytes()
    if vendor != "mlu":
        face = local[2, 3:].__cuda_array_interface__
        assert (face["shape"], face["typestr"]) == ((3, 10), "<f4")
        assert face["data"][0] == memory.__cuda_array_interface__["data"][0] + 4 * (2 * 60 + 30)
        again = tensors.register(a, type("Array", (), {"__cuda_array_interface__": face})())
        assert (again.dtype, again.shape, again.device) == ("float32", (3, 10), local.device)
    try:
        local.numpy()
    except BufferError:
        pass
    else:
        raise AssertionError("numpy() of device memory")
    target = tensors.register(b, np.zeros((8, 10), "f4"))
    remote = tensors.view(ab.import_buffer(target.buffer.descriptor(), timeout=20), "f4", (8, 10))
    ab.put_blocks(ab.prepare_blocks(*tensors.pairs(local[2, [5, 0]], remote[[1, 7]]))).wait(20)
    want = np.zeros((8, 10), "f4")
    want[[1, 7]] = host[2, [5, 0]]
    assert target.numpy().tobytes() == want.tobytes()
""", hmc.testing.environment(vendor))  # fmt: skip


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    with hmc.Context() as context:
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int64, torch.bool):
            made = torch.randint(0, 2, (3, 4, 5)).to(dtype)
            whole = tensors.register(context, made.permute(1, 0, 2))
            assert whole.dtype == str(dtype).removeprefix("torch.")
            for index in ((), (1,), (slice(1, 3),), (slice(0, 4, 2), slice(None), 3)):
                got = whole[index].torch()
                assert got.dtype == dtype
                assert torch.equal(got.to(torch.float64), made.permute(1, 0, 2)[index].to(torch.float64)), (dtype, index)
            whole[0, 0].torch().fill_(1)
            assert made[0, 0].to(torch.float64).eq(1).all()
            assert torch.equal(torch.from_dlpack(whole[1:]).to(torch.float64), made.permute(1, 0, 2)[1:].to(torch.float64))
        trained = torch.randn(4, 4, requires_grad=True)
        assert np.array_equal(tensors.register(context, trained).numpy(), trained.detach().numpy())
        assert tensors.view(context.buffer(8), torch.bfloat16, (0, 3)).torch().shape == (0, 3)


def test_bfloat16_of_numpy() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with hmc.Context() as context:
        for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
            array = np.arange(24).reshape(4, 6).astype(kind)
            whole = tensors.register(context, array)
            assert whole.dtype == np.dtype(kind).name
            assert np.array_equal(whole[1:, 2:5].numpy(), array[1:, 2:5])


def test_arrays_of_jax() -> None:
    jax = pytest.importorskip("jax")
    with hmc.Context() as context, jax.default_device(jax.devices("cpu")[0]):
        array = jax.numpy.arange(24, dtype=jax.numpy.bfloat16).reshape(4, 6)
        whole = tensors.register(context, array, access="r")
        assert (whole.dtype, whole.shape) == ("bfloat16", (4, 6))
        assert np.array_equal(whole[1:].numpy(), np.asarray(array)[1:])


def test_types_in_another_byte_order_are_refused_also_once_the_type_is_known() -> None:
    for dtype in (np.dtype("float32"), np.float32, "float32", "f32"):
        assert _dtypes.name_of(dtype) == _dtypes.name_of(dtype) == "float32"
    for other in (np.dtype("float32").newbyteorder("S"), [("a", "f4")], object()):
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="element type"):
                _dtypes.name_of(other)


def test_a_tensor_is_iterable_along_its_first_axis() -> None:
    array = numbered((3, 4), "i4", 1)
    view = tensors.view(hmc.Memory.from_array(array), "int32", array.shape)
    assert [part.numpy().tolist() for part in view] == array.tolist()
    assert [part.offset for part in view[[2, 0]]] == [32, 0]
    with pytest.raises(TypeError):
        iter(view[0, 0])


def test_lengths_of_blocks() -> None:
    view = tensors.view(hmc.Memory(4096), "float32", (4, 16, 16))
    for empty in (view[[]], view[0:0]):
        assert (empty.blocks(1024).nbytes, len(empty.blocks(1024).offsets)) == (1024, 0)
    for wrong in (2.0, True, "2"):
        with pytest.raises(TypeError, match="nbytes must be an int"):
            view.blocks(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="nbytes is 0"):
        view.blocks(0)


def test_a_part_without_an_interface_lacks_the_attribute() -> None:
    with hmc.init(0, 1) as comm:
        remote = tensors.view(comm.exchange(comm.buffer(64), timeout=20)[0], "float32", (4, 4))
        for part in (remote, tensors.view(hmc.Memory(64), "float32", (4, 4))[[0, 2]]):
            assert not hasattr(part, "__cuda_array_interface__")


def test_an_index_beyond_63_bits_is_not_taken_for_a_negative_one() -> None:
    view = tensors.view(hmc.Memory(64), "float32", (4, 4))
    with pytest.raises(InvalidArgumentError, match=f"index {2**64 - 1} of axis 0"):
        view[np.array([2**64 - 1], np.uint64)]


def test_bytes_are_registered_as_bytes() -> None:
    with hmc.Context() as context:
        tensor = tensors.register(context, b"abc", access="r")
        assert (tensor.dtype, tensor.shape, tensor.numpy().tobytes()) == ("uint8", (3,), b"abc")


def test_parts_of_very_long_axes_take_no_array_of_all_offsets() -> None:
    repeated = tensors.view(hmc.Memory(4), "int32", (1 << 40, 1), strides=(0, 4))
    assert repeated[-1].blocks().offsets.tolist() == [0]
    assert repeated[[0, (1 << 40) - 1]].shape == (2, 1)
    empty = tensors.view(hmc.Memory(0), "uint8", (1 << 40, 0))
    assert len(empty.blocks().offsets) == 0
    assert empty[7].shape == (0,)
