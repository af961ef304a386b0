"""Every argument of a bound function whose value is of another type is named by the TypeError, or described by it."""

from __future__ import annotations

import ast
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
        objects = [ctx, peer, comm, comm.local[0], hmc.Memory(64), buffer, remote, topology, plan, paged]
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
    for name, one in live.items():
        if name in text:
            return one
    for part, value in {"Index": 0, "int": 0, "float": 0.1, "str": "x", "bytes": b"x", "bool": False, "list": []}.items():
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
        values |= {one.arg: 0.1 for one in arguments if one.arg == "timeout"}
        annotation = ast.unparse(wrong.annotation) if wrong.annotation else ""
        if wrong_value is None and not any(each in annotation for each in REGISTERED):
            continue
        values[wrong.arg] = wrong_value
        with pytest.raises((TypeError, ValueError, hmc.HmcError)) as raised:
            call(**values)
        yield wrong.arg, str(raised.value)


def test_no_refusal_is_a_list_of_signatures(live: dict[str, Any]) -> None:
    walked = 0
    for owner, function in functions():
        name = function.name
        if owner in MADE and name == "__init__":
            target = getattr(_core, owner)
        elif not name.startswith("_") and name not in LEFT_OUT and owner in {"", *live} and not (owner and function.decorator_list):
            target = getattr(live[owner] if owner else _core, name)
        else:
            continue
        for wrong in (Odd(), None):
            for argument, said in refusals(function, target, live, wrong):
                walked += 1
                assert "incompatible" not in said, f"{owner}.{name}({argument}={wrong}): {said}"
    assert walked > 150


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda comm: comm.abort(reason=5), "reason must be a str, not a int"),
        (lambda comm: comm.broadcast(np.zeros(1), root=1.5), "root must be an int"),
        (lambda comm: comm.plan("broadcast", 8, exact="no"), "exact must be a bool, not a str"),
        (lambda comm: comm.plan("broadcast", 8, algorithm=1), "algorithm must be a str, not a int"),
        (lambda comm: comm.context.publish("x", np.zeros(1)), "buffer must be a ConnBuffer, not a numpy.ndarray"),
        (lambda comm: comm.local[0].exchange_bytes("x"), "data must be bytes, not a str"),
        (lambda comm: comm.exchange(5), "ConnBuffer as buffer, or {Member: ConnBuffer}"),
        (lambda comm: comm.subgroup("01", 3), "ranks must be a sequence, not a str"),
        (lambda comm: comm.subgroup(np.array(1), 3), "ranks must be a sequence, not a numpy.ndarray"),
        (lambda comm: comm.subgroup([0.5], 3), "ranks must be an int, not a float"),
        (lambda comm: comm.all_to_all({0: (np.zeros(1), np.zeros(1))}), "{Member: (out, inp)}"),
        (lambda comm: comm.all_to_all({comm.local[0]: 1}), "{Member: (out, inp)}"),
        (lambda comm: comm.plan("broadcast", 8, dtype=Odd()), "dtype: Cannot interpret"),
        (lambda comm: comm.isend(np.zeros(1), 0).add_done_callback(1), "callback must be callable, and a int is not"),
        (lambda _: hmc.Context(name=1), "name must be a str, not a int"),
        (lambda _: hmc.Context(listen=5), "listen must be a sequence, not a int"),
        (lambda _: hmc.Context(listen=[5]), "listen must be a str, not a int"),
        (lambda _: hmc.Context(heartbeat="5"), "heartbeat must be a number, not a str"),
        (lambda _: hmc.Context(insecure="yes"), "insecure must be a bool, not a str"),
        (lambda _: hmc.Context(on_joined=1), "on_joined must be callable, and a int is not"),
        (lambda _: hmc.Memory(8).__dlpack__(max_version=5), "max_version must be a sequence, not a int"),
        (lambda _: hmc.plan_islands(8, [5]), "islands must be an IslandCards, not a int"),
        (lambda _: layout.Layout("L B N H D f32", L="1"), "L must be an int, not a str"),
        (lambda _: weights.from_state(1), "state must be a mapping of names to tensors, not a int"),
        (lambda _: weights.from_module(1), "module must have a state_dict(), and a int has none"),
        (lambda _: tensors.register(1, np.zeros(1)), "owner must be a Context or Communicator, not a int"),
        (lambda _: tensors.pairs(1, 2), "local must be a Tensor, not a int"),
        (lambda _: hmc.wait_all(5), "works must be an iterable, not a int"),
        (lambda _: hmc.CompletionQueue().watch(5, 1), "work must be a Work, not a int"),
        (lambda _: hmc.plan_islands(8, [None]), "islands must be an IslandCards, not a NoneType"),
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
    ],
)
def test_half_a_surrogate_is_no_text(live: dict[str, Any], call: Callable[[Any, str], Any]) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match=r"lone surrogate|\\ud800"):
        call(live["Communicator"], "\ud800")


def test_a_vendor_that_cannot_be_simulated() -> None:
    with pytest.raises(ValueError, match="'cpu' is not a vendor"):
        testing.environment("cpu")
