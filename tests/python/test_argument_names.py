"""Every argument of a bound function whose value is of another type is named by the TypeError, or described by it."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hmc
from hmc import _core, layout, tensors, testing, weights

STUB = Path(hmc.__file__).with_name("_core.pyi")
# Classes whose arguments refuse None.
REGISTERED = {"ConnBuffer", "RemoteBuffer", "Descriptor", "BlockBatch", "TopologyNic", "TopologyCard"}
MADE = {"Memory", "IslandCards", "Layout"}
# They end what the others are called on, or wait for other processes.
LEFT_OUT = {"close", "abort", "shrink", "grow", "accept"}


class Odd:
    """Of no type that any argument takes."""


@pytest.fixture(scope="module")
def live() -> Iterator[dict[str, Any]]:
    """An object of each class with calls of many arguments, by the class's name."""
    with hmc.Context() as ctx, hmc.init(rank=0, size=1) as comm:
        peer = ctx.connect(ctx.addresses[0])
        buffer = ctx.buffer(64)
        remote = peer.import_buffer(buffer.descriptor())
        plan = comm.plan("all_reduce", 64)
        topology = hmc.Topology()
        topology.add_card("host", "cuda:0")
        topology.add_nic("host", "eth0")
        paged = layout.Layout("L=1 B=2 N=4 H=1 D=8 f32")
        batch = peer.prepare_blocks([(buffer, [0], remote, [8])], 8)
        objects = [ctx, peer, comm, comm.local[0], hmc.Memory(64), buffer, remote, topology, plan, paged, batch]
        objects += [hmc.Descriptor.parse(bytes(buffer.descriptor())), topology.cards[0], topology.nics[0]]
        yield {type(one).__name__: one for one in objects}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """The stub's: (class or "", function)."""
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef) and getattr(hmc, node.name, None) is getattr(_core, node.name):
            yield "", node
        if isinstance(node, ast.ClassDef):
            yield from ((node.name, one) for one in node.body if isinstance(one, ast.FunctionDef))


def fitting(annotation: ast.expr | None, live: dict[str, Any]) -> Any:
    """A value that an argument with this annotation takes."""
    text = ast.unparse(annotation) if annotation else ""
    named = [name for name in live if name in text]
    if named:
        return live[max(named, key=len)]  # not Topology for a TopologyCard
    values = {"tuple": (0, 1), "IslandCards": [hmc.IslandCards("island", 2, inside=1.0, nic=1.0, memory=1.0)], "Index": 0, "int": 0}
    values |= {"float": 0.1, "str": "x", "bytes": b"x", "bool": False, "list": []}
    for part, value in values.items():
        if part in text:
            return value
    return np.zeros(8, np.uint8)


def refusals(
    function: ast.FunctionDef, call: Callable[..., Any], live: dict[str, Any], wrong_value: Any
) -> Iterator[tuple[str, str]]:
    """For each argument: what a call says that passes ``wrong_value`` for it. None only where the argument does not take it."""
    arguments = [one for one in function.args.args if one.arg != "self"]
    required = arguments[: len(arguments) - len(function.args.defaults)]
    named = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    required += [one for one, default in named if default is None]
    for wrong in arguments + function.args.kwonlyargs:
        values = {one.arg: fitting(one.annotation, live) for one in required}
        given = {"timeout": 0.1, "inp": np.zeros(8, np.uint8), "format": "chakra"}  # the others are looked at once these are
        values |= {one.arg: given[one.arg] for one in arguments if one.arg in given}
        annotation = ast.unparse(wrong.annotation) if wrong.annotation else ""
        if wrong_value is None and not any(each in annotation for each in REGISTERED):
            continue
        values[wrong.arg] = wrong_value
        with pytest.raises((TypeError, ValueError, hmc.HmcError)) as raised:
            call(**values)
        yield wrong.arg, str(raised.value)


def target_of(owner: str, function: ast.FunctionDef, live: dict[str, Any]) -> Callable[..., Any] | None:
    """What a call of the function calls; None where it is left out."""
    if owner in MADE and function.name == "__init__":
        return getattr(_core, owner)  # type: ignore[no-any-return]
    kinds = {ast.unparse(one) for one in function.decorator_list}
    if function.name.startswith("_") or function.name in LEFT_OUT or kinds & {"property", "typing.overload"}:
        return None
    if kinds == {"staticmethod"} and hasattr(hmc, owner):
        return getattr(getattr(_core, owner), function.name)  # type: ignore[no-any-return]
    if kinds or owner not in {"", *live}:
        return None
    return getattr(live[owner] if owner else _core, function.name)  # type: ignore[no-any-return]


def test_no_refusal_is_a_list_of_signatures(live: dict[str, Any]) -> None:
    walked = 0
    for owner, function in functions():
        target = target_of(owner, function, live)
        if target is None:
            continue
        for wrong in (Odd(), None):
            for argument, said in refusals(function, target, live, wrong):
                walked += 1
                names = argument in said or type(wrong).__name__ in said
                assert names, f"{owner}.{function.name}({argument}={wrong}): {said}"
                assert "incompatible" not in said, f"{owner}.{function.name}({argument}={wrong}): {said}"
    assert walked > 200


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda comm: comm.abort(reason=5), "reason must be a str, not a int"),
        (lambda comm: comm.broadcast(np.zeros(1), root=1.5), "root must be an int"),
        (lambda comm: comm.plan("broadcast", 8, exact="no"), "exact must be a bool, not a str"),
        (lambda comm: comm.plan("broadcast", 8, algorithm=1), "algorithm must be a str, not a int"),
        (lambda comm: comm.context.publish("x", np.zeros(1)), "buffer must be a ConnBuffer, not a numpy.ndarray"),
        (lambda comm: comm.local[0].exchange_bytes("x"), "data must be bytes, not a str"),
        (lambda comm: comm.exchange(5), "buffer must be a ConnBuffer, or {Member: ConnBuffer}, not a int"),
        (
            lambda comm: comm.exchange(buffer=None, timeout=1),
            "buffer must be a ConnBuffer, or {Member: ConnBuffer}, not a NoneType",
        ),
        (lambda comm: comm.exchange({0: 1}), "exchange takes a ConnBuffer as buffer, or {Member: ConnBuffer}"),
        (lambda comm: comm.exchange_bytes(data="x"), "data must be bytes, or {Member: bytes}, not a str"),
        (lambda comm: comm.subgroup("01", 3), "ranks must be a sequence, not a str"),
        (lambda comm: comm.subgroup(np.array(1), 3), "ranks must be a sequence, not a numpy.ndarray"),
        (lambda comm: comm.subgroup([0.5], 3), "each of ranks must be an int, not a float"),
        (lambda comm: comm.all_to_all({0: (np.zeros(1), np.zeros(1))}), "{Member: (out, inp)}"),
        (lambda comm: comm.all_to_all({comm.local[0]: 1}), "{Member: (out, inp)}"),
        (lambda comm: comm.plan("broadcast", 8, dtype=Odd()), "dtype: Cannot interpret"),
        (lambda comm: comm.isend(np.zeros(1), 0).add_done_callback(1), "callback must be callable, and a int is not"),
        (lambda _: hmc.Context(name=1), "name must be a str, not a int"),
        (lambda _: hmc.Context(policy=1), "policy must be a str, not a int"),
        (lambda _: hmc.Context(progress=1), "progress must be a str, not a int"),
        (lambda comm: comm.subgroup({0: 1}, 3), "ranks must be a sequence, not a dict"),
        (lambda comm: comm.all_reduce(np.zeros(1), dtype="\ud800"), "dtype: "),
        (lambda _: hmc.Topology.load(5), "file must be a path, not a int"),
        (lambda _: hmc.Context(listen=5), "listen must be a sequence, not a int"),
        (lambda _: hmc.Context(listen=[5]), "each of listen must be a str, not a int"),
        (lambda _: hmc.Context(heartbeat="5"), "heartbeat must be a number, not a str"),
        (lambda _: hmc.Context(insecure="yes"), "insecure must be a bool, not a str"),
        (lambda _: hmc.Context(on_joined=1), "on_joined must be callable, and a int is not"),
        (lambda _: hmc.Memory(8).__dlpack__(max_version=5), "max_version must be a sequence, not a int"),
        (lambda _: hmc.plan_islands(8, [5]), "each of islands must be an IslandCards, not a int"),
        (lambda _: layout.Layout("L B N H D f32", L="1"), "L must be an int, not a str"),
        (lambda _: weights.from_state(1), "state must be a mapping of names to tensors, not a int"),
        (lambda _: weights.from_module(1), "module must have a state_dict(), and a int has none"),
        (lambda _: tensors.register(1, np.zeros(1)), "owner must be a Context or Communicator, not a int"),
        (lambda _: tensors.pairs(1, 2), "local must be a Tensor, not a int"),
        (lambda _: hmc.wait_all(5), "works must be an iterable, not a int"),
        (lambda _: hmc.CompletionQueue().watch(5, 1), "work must be a Work, not a int"),
        (lambda _: hmc.plan_islands(8, [None]), "each of islands must be an IslandCards, not a NoneType"),
    ],
)
def test_the_argument_and_what_it_takes(live: dict[str, Any], call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(TypeError) as raised:
        call(live["Communicator"])
    assert said in str(raised.value)


def test_numbers_that_fit_no_int(live: dict[str, Any]) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match=r"dst must be from -2147483648 to 2147483647, and is 4294967296"):
        live["Communicator"].fence(1 << 32)
    with pytest.raises(hmc.InvalidArgumentError, match="number must be from 0 to 4294967295, and is -1"):
        live["Communicator"].subgroup([0], -1)
    queue, work = hmc.CompletionQueue(), live["Communicator"].isend(np.zeros(1), 0)
    queue.watch(work, (1 << 64) - 1)
    assert queue.drain() == [(1 << 64) - 1]
    with pytest.raises(hmc.InvalidArgumentError, match="token must be from 0 to 18446744073709551615, and is 18446744073709551616"):
        queue.watch(work, 1 << 64)
    with pytest.raises(hmc.InvalidArgumentError, match=r"token must be from 0 .* and is -1"):
        queue.watch(work, -1)


def test_complete_is_a_str_of_every_put(live: dict[str, Any]) -> None:
    for put, what in (("put", (live["ConnBuffer"], live["RemoteBuffer"])), ("put_blocks", (live["BlockBatch"],))):
        for owner in ("Peer", "Communicator"):
            with pytest.raises(TypeError, match="complete must be a str, not a int"):
                getattr(live[owner], put)(*what, complete=5)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError, ZeroDivisionError])
def test_what_an_index_raises_is_raised(live: dict[str, Any], raised: type[BaseException]) -> None:
    class Raises:
        def __index__(self) -> int:
            raise raised

    comm, array, bad = live["Communicator"], np.zeros(1), Raises()
    calls: list[Callable[[], Any]] = [
        lambda: comm.isend(array, bad),
        lambda: comm.isend(array, 0, tag=bad),
        lambda: comm.broadcast(array, root=bad),
        lambda: comm.fence(bad),
        lambda: comm.subgroup([bad], 3),
        lambda: comm.split(bad),
        lambda: hmc.Memory(bad),
    ]
    for call in calls:
        with pytest.raises(raised):
            call()


def test_a_timeout_beyond_a_float_that_compares_with_nothing(live: dict[str, Any]) -> None:
    class Huge:
        def __float__(self) -> float:
            raise OverflowError

    for call in (live["Communicator"].barrier, live["Communicator"].notifications, live["Context"].accept):
        with pytest.raises(TypeError, match="not supported between"):
            call(timeout=Huge())


def test_iterables_are_sequences(live: dict[str, Any]) -> None:
    comm = live["Communicator"]
    for number, ranks in enumerate(({0}, (rank for rank in [0]), {0: 1}.keys(), range(1), np.array([0])), 5):
        comm.subgroup(ranks, number).close()
    out = np.zeros(2)
    comm.all_to_all_v({comm.local[0]: [out, [2], np.arange(2.0), [2]]})
    assert (out == np.arange(2.0)).all()


def test_paths_of_files(tmp_path: Path) -> None:
    topology = hmc.Topology()
    topology.add_card("host", "cuda:0")
    for file in (tmp_path / "a", str(tmp_path / "b"), os.fsencode(tmp_path) + b"/\xff"):
        topology.save(file)
        assert str(hmc.Topology.load(file)) == str(topology)


def test_bools_of_numpy(live: dict[str, Any]) -> None:
    live["Communicator"].all_reduce(np.zeros(1), exact=np.True_)
    assert live["Communicator"].plan("all_reduce", 8, exact=np.True_).algorithm


@pytest.mark.parametrize("number", [-1, 1 << 70])
def test_numbers_that_are_no_stream(live: dict[str, Any], number: int) -> None:
    comm, array = live["Communicator"], np.zeros(1)
    for call in (
        lambda: comm.isend(array, 0, stream=number),
        lambda: comm.iall_reduce(array, stream=number),
        lambda: live["Peer"].put(live["ConnBuffer"], live["RemoteBuffer"], stream=number),
    ):
        with pytest.raises(hmc.InvalidArgumentError, match=f"stream is {number}"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, text: comm.all_reduce(np.zeros(1), op=text),
        lambda comm, text: comm.all_reduce(np.zeros(1), algorithm=text),
        lambda comm, text: comm.broadcast(np.zeros(1), algorithm=text),
        lambda comm, text: comm.abort(text),
        lambda comm, text: comm.context.unpublish(text),
        lambda _, text: hmc.Memory(8, text),
        lambda _, text: hmc.Context(name=text),
        lambda _, text: hmc.Context(policy=text),
        lambda _, text: hmc.Context(**{text: 1}),
        lambda _, text: hmc.init(0, 1, rendezvous=text),
        lambda _, text: hmc.join(text),
    ],
)
def test_half_a_surrogate_is_no_text(live: dict[str, Any], call: Callable[[Any, str], Any]) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match=r"lone surrogate|\\ud800"):
        call(live["Communicator"], "\ud800")


def test_half_a_surrogate_is_no_keyword(live: dict[str, Any]) -> None:
    for owner, name in (("Communicator", "barrier"), ("Member", "all_reduce"), ("Peer", "send")):
        with pytest.raises(TypeError, match=r"unexpected keyword argument '\\ud800'"):
            getattr(live[owner], name)(np.zeros(1), **{"\ud800": 1})


def test_what_is_no_device_of_dlpack(live: dict[str, Any]) -> None:
    class Wrong:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"shape": (0,), "typestr": "<f4", "data": (0, False), "version": 3}

        def __dlpack_device__(self) -> Any:
            return "cuda", "0"

    comm: hmc.Communicator = live["Communicator"]
    for call in (
        lambda: comm.isend(Wrong(), 0),
        lambda: comm.all_reduce(Wrong(), dtype="float32"),
        lambda: comm.broadcast(Wrong()),
    ):
        with pytest.raises(TypeError, match="__dlpack_device__ must be an int, not a str"):
            call()


def test_a_key_beside_a_wrong_argument_is_not_shown() -> None:
    with pytest.raises(TypeError, match="takes keyword arguments only") as raised:
        hmc.Context("unix:/tmp/x", key="a secret")  # type: ignore[call-arg]
    assert "secret" not in str(raised.value)


def test_a_vendor_that_cannot_be_simulated() -> None:
    with pytest.raises(ValueError, match="'cpu' is not a vendor"):
        testing.environment("cpu")
    with pytest.raises(TypeError, match="vendor must be a str, not a list"):
        testing.environment(["cuda"])  # type: ignore[arg-type]


def test_a_number_of_devices_that_cannot_be_simulated() -> None:
    for wrong in (9, -1):
        with pytest.raises(hmc.InvalidArgumentError, match=f"devices is {wrong}"):
            testing.environment("cuda", devices=wrong)
    with pytest.raises(TypeError, match="devices must be an int, not a str"):
        testing.environment("cuda", devices="2")  # type: ignore[arg-type]


def test_elements_of_wrong_types_inside_arguments(live: dict[str, Any]) -> None:
    comm = live["Communicator"]
    with pytest.raises(TypeError, match="each pair is"):
        comm.prepare_blocks([1], 8)
    with pytest.raises(TypeError, match="expected a Work, not a int"):
        hmc.wait_all([1])  # type: ignore[list-item]
    described = layout.Layout("L=1 B=1 H=1 N=4 (kv D=8) f32")
    for name in ("layers", "heads"):
        with pytest.raises(TypeError, match=f"{name} must be a sequence, not a int"):
            layout.digest(described, np.zeros(64, np.float32), [0], 4, **{name: 1})  # type: ignore[arg-type]


def test_none_in_a_list_of_colors_joins_no_group(live: dict[str, Any]) -> None:
    assert live["Communicator"].split([None], timeout=20) is None
