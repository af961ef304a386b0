"""Wrong arguments of init(), join(), hmc.kv, hmc.weights, hmc.experts and hmc.layout are refused by name, and change nothing."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kv_sides import PAIRS, expected, same
from weights_pair import Pair, random

import hmc
from hmc import kv, layout, tensors, weights
from hmc._arguments import number, seconds, text, whole, wholes
from hmc._deadline import Deadline

HUGE = 10**5000  # Python refuses to write it
NO_INTS: list[Any] = ["1", 0.5, 1.0, None, True, np.True_, np.float32(1), [1], b"1", 1j, float("nan"), np.array([1, 2])]
NO_SECONDS: list[Any] = ["1", True, [1], 1j, b"1", object()]
OUT_OF_TIME: list[Any] = [-1, -0.5, float("nan"), float("-inf"), -HUGE, np.float64(-1)]
ENDLESS: list[Any] = [1e300, float("inf"), HUGE, np.float32(1e30), 10**12]


def refuses(kind: type[Exception], name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    with pytest.raises(kind, match=rf"^(experts\.Buffer: |\w+: )?{re.escape(name)}(?!\w)"):
        call(*arguments, **named)


def walk_whole(name: str, call: Callable[[Any], Any], least: int, optional: bool = False) -> None:
    """``call`` takes an int, which is at least ``least``."""
    for wrong in NO_INTS:
        if wrong is not None or not optional:
            refuses(TypeError, name, call, wrong)
    for wrong in (least - 1, -HUGE, HUGE, np.int8(least - 1)):
        refuses(hmc.InvalidArgumentError, name, call, wrong)


def walk_seconds(call: Callable[[Any], Any], name: str = "timeout") -> None:
    for wrong in NO_SECONDS:
        refuses(TypeError, name, call, wrong)
    for wrong in OUT_OF_TIME:
        refuses(hmc.InvalidArgumentError, name, call, wrong)


def walk_blocks(call: Callable[[Any], Any]) -> None:
    for wrong in ("12", b"12", 5, 0.5, np.array(3), object(), True):
        refuses(TypeError, "blocks", call, wrong)
    for wrong in ([0.5], np.array([1.0]), ["1"], [True], [0, np.True_], [None], np.array([[1, 2]]), np.array([True])):
        refuses(TypeError, "blocks", call, wrong)
    for wrong in ([], [-1], [HUGE], [1 << 64], np.array([-1])):
        refuses(hmc.InvalidArgumentError, "blocks", call, wrong)


def test_numbers_of_every_library_are_taken() -> None:
    for one in (3, np.int8(3), np.uint64(3), np.array(3), np.int64(3)):
        assert whole("n", one) == 3
        assert type(whole("n", one)) is int
    for some in ([3, 1], (3, 1), range(3, 0, -2), np.array([3, 1], np.uint8), iter([np.int16(3), 1]), {3: 0, 1: 0}.keys()):
        assert wholes("n", some) == [3, 1]
    for one in (2, 2.0, np.float32(2), np.int32(2), np.array(2.0)):
        assert seconds("s", one) == 2.0
    assert number("s", -HUGE) == float("-inf")
    assert seconds("s", HUGE) == float("inf")
    assert text("t", "x") == "x"
    for timeout in ENDLESS:
        assert Deadline(timeout).left() is None
    assert Deadline(0).left() == 0


def test_numbers_of_torch_are_taken() -> None:
    torch = pytest.importorskip("torch")
    assert wholes("n", torch.tensor([3, 1])) == [3, 1]
    assert whole("n", torch.tensor(3)) == 3
    refuses(TypeError, "n", whole, "n", torch.tensor(0.5))


def test_kv_refuses_by_name(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(*PAIRS[0])
    lease = a.pool.lease("s", [3, 1], 20)
    inbox = b.pool.receive(to_a, [7, 8], 20)
    for wrong in (None, 5, b"L=1", [a.layout]):
        refuses(TypeError, "layout", kv.Pool, a.ctx, a.arrays, wrong)
        refuses(TypeError, "ctx", kv.Pool, wrong, a.arrays, a.layout)
    before = a.pool.counters(), b.pool.counters()
    walk_whole("tokens", lambda wrong: a.pool.allocate("x", wrong), 1)
    walk_whole("lease_blocks", lambda wrong: kv.Pool(a.ctx, a.arrays, a.layout, lease_blocks=wrong), 1, optional=True)
    for call in (a.pool.lease, lambda **named: b.pool.receive(to_a, **named)):
        walk_blocks(lambda wrong, call=call: call(session="x", blocks=wrong))
        walk_whole("tokens", lambda wrong, call=call: call(session="x", blocks=[1], tokens=wrong), 1, optional=True)
        walk_whole("first", lambda wrong, call=call: call(session="x", blocks=[1], tokens=1, first=wrong), 0)
    walk_blocks(lambda wrong: a.pool.push(to_b, inbox.ticket, wrong))
    walk_blocks(lambda wrong: a.pool.migrate(to_b, inbox.ticket, wrong, session="x"))
    walk_blocks(lambda wrong: b.pool.pull(to_a, lease.ticket, wrong))
    walk_whole("credits", lambda wrong: a.pool.push(to_b, inbox.ticket, [1, 2], credits=wrong), 1)
    walk_whole("first", lambda wrong: a.pool.push(to_b, inbox.ticket, [1, 2], first=wrong), 0)
    walk_whole("first", lambda wrong: a.pool.migrate(to_b, inbox.ticket, [1, 2], session="x", first=wrong), 0)
    walk_whole("skip", lambda wrong: b.pool.receive(to_a, [1], skip=wrong), 0)
    walk_whole("skip", lambda wrong: b.pool.pull(to_a, lease.ticket, [1], skip=wrong), 0)
    walk_whole("first", lambda wrong: b.pool.pull(to_a, lease.ticket, [1], first=wrong), 0)
    walk_whole("tokens", lambda wrong: b.pool.pull(to_a, lease.ticket, [1, 2], tokens=wrong), 1, optional=True)
    for wrong in (3, None, b"s", [], object()):
        for call in (a.pool.allocate, lambda wrong, _: a.pool.lease(wrong, [1]), lambda wrong, _: a.pool.free(wrong)):
            refuses(TypeError, "session", call, wrong, 3)
        refuses(TypeError, "session", a.pool.push, to_b, inbox.ticket, [1, 2], session=wrong)
        refuses(TypeError, "session", a.pool.migrate, to_b, inbox.ticket, [1, 2], session=wrong)
        refuses(TypeError, "session", b.pool.pull, to_a, lease.ticket, [1, 2], session=wrong)
        refuses(TypeError, "session", b.pool.receive, to_a, [1, 2], session=wrong)
        if wrong is not None:
            refuses(TypeError, "session", a.pool.counters, wrong)
    for wrong in [*NO_SECONDS, None]:
        refuses(TypeError, "seconds", a.pool.lease, "x", [1], seconds=wrong)
    for wrong in [*OUT_OF_TIME, 0]:
        refuses(hmc.InvalidArgumentError, "seconds", a.pool.lease, "x", [1], seconds=wrong)
        refuses(hmc.InvalidArgumentError, "seconds", lease.renew, wrong)
    refuses(TypeError, "on_end", a.pool.lease, "x", [1], on_end=3)
    for wait in (lease.wait, inbox.wait, a.pool.close, lambda timeout: inbox.wait_layer(0, timeout)):
        walk_seconds(wait)
    walk_seconds(lambda wrong: b.pool.receive(to_a, [1], timeout=wrong))
    walk_whole("layer", inbox.wait_layer, 0)
    refuses(hmc.InvalidArgumentError, "layer", inbox.wait_layer, 3)
    assert (a.pool.counters(), b.pool.counters()) == before
    assert (b.pool.blocks.sessions, a.pool.blocks.sessions) == ([""], ["s"])
    push_and_pull(a, b, to_a, to_b, lease, inbox)


def push_and_pull(a: Any, b: Any, to_a: Any, to_b: Any, lease: kv.Lease, inbox: kv.Inbox) -> None:
    """With NumPy's integers, and without a limit."""
    lease.renew(1e300)
    wanted = expected(a, [3, 1], b, [0, 2], 20)
    b.pool.pull(to_a, lease.ticket, np.array([0, 2], np.uint16), skip=np.int8(0), tokens=np.int64(20)).wait(1e300)
    same(b, wanted)
    assert lease.wait(1e300) == "read"
    wanted = expected(a, [4, 5], b, [7, 8], 20)
    push = a.pool.push(to_b, inbox.ticket, np.array([4, 5]), credits=np.int32(2), first=np.uint8(0))
    walk_whole("layer", push.ready, 0)
    walk_seconds(lambda wrong: push.ready(0, wrong))
    walk_seconds(push.close)
    walk_seconds(push.wait)
    for layer in np.arange(3):
        push.ready(layer, timeout=1e300)
    inbox.wait_layer(np.int64(2), np.float32(20))
    push.close(float("inf"))
    inbox.wait(HUGE)
    same(b, wanted)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as end:
        yield Pair(end)


def test_weights_refuse_by_name(pair: Pair) -> None:
    array = random((4, 6), np.uint16)
    wrong: Any
    walk_whole("epoch", lambda wrong: weights.publish(pair.source_ctx, {}, epoch=wrong, name="other"), 0)
    walk_whole("size", lambda wrong: weights.shard(array, 0, 0, wrong), 1)
    for wrong in NO_INTS:
        refuses(TypeError, "axis", weights.shard, array, wrong, 0, 1)
        refuses(TypeError, "rank", weights.shard, array, 0, wrong, 1)
        refuses(TypeError, "axis", weights.fused, array, {"a": 4}, axis=wrong)
        refuses(TypeError, "rank", weights.fused, array, {"a": 4}, rank=wrong)
        refuses(TypeError, "size", weights.fused, array, {"a": 4}, size=wrong)
        refuses(TypeError, "extents['a']", weights.fused, array, {"a": wrong})
        refuses(TypeError, "shape[1]", weights.part, array, (4, wrong))
        refuses(TypeError, "at[0]", weights.part, array, (4, 6), (wrong, 0))
    for wrong in ("46", 6, 0.5, True, b"46"):
        refuses(TypeError, "shape", weights.part, array, wrong)
        refuses(TypeError, "at", weights.part, array, (4, 6), wrong)
        refuses(TypeError, "extents", weights.fused, array, wrong)
        refuses(
            TypeError,
            "block",
            weights.quantised,
            np.zeros((4, 6), np.uint8),
            np.ones((1, 1), np.float32),
            block=wrong,
            dtype="float8_e4m3fn",
        )
    refuses(hmc.InvalidArgumentError, "extents['a']", weights.fused, array, {"a": -2, "b": 6})
    refuses(hmc.InvalidArgumentError, "shape[0]", weights.part, array, (HUGE, 6))
    refuses(TypeError, "ctx", weights.publish, "ctx", {})
    refuses(TypeError, "ctx", weights.lookup, "ctx", pair.peer)
    refuses(TypeError, "peer", weights.lookup, pair.ctx, "peer")
    walk_seconds(lambda wrong: weights.lookup(pair.ctx, pair.peer, timeout=wrong))
    source = weights.publish(pair.source_ctx, {"x": weights.shard(array, np.int8(0), np.int64(1), np.uint8(2))}, np.int64(7))
    plan = pair.plan(weights.lookup(pair.ctx, pair.peer, timeout=1e300), {"x": weights.part(np.zeros_like(array), (8, 6), [4, 0])})
    walk_whole("epoch", lambda wrong: source.update(wrong).__enter__(), 0)
    walk_whole("epoch", lambda wrong: plan.pull(epoch=wrong), 0, optional=True)
    for call in (lambda wrong: plan.pull(timeout=wrong), plan.close, source.close):
        walk_seconds(call)
    with source.update(np.uint8(9)):
        array[:] += 1
    pull = plan.pull(epoch=np.int32(9), timeout=1e300)
    for call in (pull.wait, pull.drained):
        walk_seconds(call)
    pull.drained(float("inf"))
    pull.wait(HUGE)
    assert plan.commit() == source.epoch == 9
    assert np.array_equal(plan.places[0].part.array, array)
    plan.close(1e300)
    source.close(1e300)


def test_experts_refuse_by_name(run_job: Callable[..., str]) -> None:
    source = """
    import hmc.experts
    from experts_layer import *
    from test_arguments import HUGE, NO_INTS, refuses, walk_seconds, walk_whole
    with hmc.init() as comm:
        sizes = {"experts": 13, "hidden": 33, "tokens": 17, "topk": 5, "dtype": "float32"}
        for name in ("experts", "hidden", "tokens", "topk"):
            walk_whole(name, lambda wrong: hmc.experts.Buffer(comm, **{**sizes, name: wrong}), 1, optional=name == "topk")
        refuses(TypeError, "once", lambda: hmc.experts.Buffer(comm, **sizes, once="no"))
        refuses(TypeError, "comm", lambda: hmc.experts.Buffer("comm", **sizes))
        walk_seconds(lambda wrong: hmc.experts.Buffer(comm, **sizes, timeout=wrong))
        with buffer_of(comm, **{name: size if name == "dtype" else np.int64(size) for name, size in sizes.items()}) as ep:
            x = rows((1, comm.rank), 17, 33)
            ids, weights = routing((1, comm.rank), 17, 5, 13)
            walk_seconds(lambda wrong: ep.dispatch(x, ids, weights, timeout=wrong))
            x2, handle = ep.dispatch(x, ids, weights, timeout=HUGE)
            results = apply(ep, x2, handle)
            for call in (lambda timeout: ep.combine(results, handle, timeout=timeout), lambda timeout: ep.resume(timeout=timeout),
                         lambda timeout: ep.release(handle, timeout=timeout), lambda timeout: ep.mask(1, timeout=timeout),
                         lambda timeout: ep.results(handle, timeout=timeout), ep.close):
                walk_seconds(call)
            walk_whole("rank", ep.experts_of, 0)
            walk_whole("rank", ep.mask, 0)
            walk_whole("expert", handle.rows, 0)
            assert len(ep.experts_of(np.uint8(1))) == 7 and handle.rows(np.int16(0)).start == 0
            check_sum(ep, ep.combine(results, handle, timeout=1e300), x, ids, weights, handle)
            comm.barrier(timeout=20)
    print("done")
    """
    assert run_job(textwrap.dedent(source), 2).count("done") == 2


def test_layouts_refuse_by_name() -> None:
    here = layout.Layout("L=1 B=4 H=1 N=4 (kv D=64) f16")
    array, blocks = np.zeros(here.buffer_bytes, np.uint8), [0, 1]
    calls: dict[str, Callable[..., Any]] = {
        "digest": lambda **named: layout.digest(here, array, blocks, **{"tokens": 5, **named}),
        "digests": lambda **named: layout.digests(here, array, blocks, **{"tokens": 5, **named}),
        "runs": lambda **named: layout.runs(here, blocks, here, [2, 3], **{"tokens": 5, **named}),
        "convert": lambda **named: layout.convert(here, array, blocks, here, array, [2, 3], **{"tokens": 5, **named}),
    }
    for name, call in calls.items():
        ends = ("first",) if name.startswith("digest") else ("source_first", "target_first")
        for argument in ("tokens", *ends, *(() if name == "runs" else ("position",))):
            walk_whole(argument, lambda wrong, call=call, argument=argument: call(**{argument: wrong}), 0)
            call(**{argument: np.int16(1)})


def test_views_refuse_by_name() -> None:
    memory = hmc.Memory(100)
    walk_whole("offset", lambda wrong: tensors.view(memory, "u1", 1, offset=wrong), 0)
    for wrong in ([True], (2, True), [1.0], (2, 1.5), ["1"], np.array([1.5]), [None]):
        refuses(TypeError, "shape", tensors.view, memory, "u1", wrong)
        refuses(TypeError, "strides", tensors.view, memory, "u1", (1,) * len(wrong), wrong)
    for wrong in ("1", 0.5, True, np.True_, 1j, b"1"):
        refuses(TypeError, "shape", tensors.view, memory, "u1", wrong)
    for wrong in (HUGE, [HUGE], [-1]):
        refuses(hmc.InvalidArgumentError, "shape", tensors.view, memory, "u1", wrong)
    for shape in (np.int64(5), np.array([5]), [np.uint8(5)], range(5, 6)):
        assert tensors.view(memory, "u1", shape, offset=np.int16(3)).shape == (5,)


def test_init_and_join_refuse_by_name() -> None:
    for call in (hmc.init, lambda **named: hmc.join(**{"invitation": "x", **named})):
        walk_seconds(lambda wrong, call=call: call(timeout=wrong))
        refuses(TypeError, "timeout", call, timeout=None)
        for wrong in ("cpu", b"cpu", 3, 0.5, True, object()):
            refuses(TypeError, "devices", call, devices=wrong)
    walk_whole("rank", lambda wrong: hmc.init(rank=wrong, size=1), -1, optional=True)
    walk_whole("size", lambda wrong: hmc.init(rank=0, size=wrong), -1, optional=True)
    for wrong in (None, 3, b"unix:/x", [], object()):
        refuses(TypeError, "rendezvous", hmc.init, rendezvous=wrong)
        refuses(TypeError, "invitation", hmc.join, wrong)
    for wrong in (3, "cpu", [], object()):
        refuses(TypeError, "topology", hmc.init, topology=wrong)
    with hmc.init(rank=np.int8(0), size=np.int64(1), devices=(None,), timeout=np.float32(9)) as comm:
        assert comm.size == 1
