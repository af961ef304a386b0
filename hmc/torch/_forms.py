"""The forms of a group's calls that torch's class has besides lists and options: ``group.allreduce(tensor, dist.ReduceOp.MAX)``."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed.distributed_c10d as c10d

_Names = tuple[str, ...]


class _Call(NamedTuple):
    tensors: tuple[_Names, ...]  # of each argument that a call must have, its names in torch's forms
    options: type
    plain: dict[str, str]  # arguments in place of options, in order: the options' attribute of each
    lists: bool = True  # of tensors, for which single ones may stand


_OP, _ROOT, _TIMEOUT = {"op": "reduceOp"}, {"root": "rootRank"}, {"timeout": "timeout"}
_CALLS = {
    "allreduce": _Call((("tensors", "tensor"),), c10d.AllreduceOptions, _OP | _TIMEOUT),
    "reduce": _Call((("tensors", "tensor"),), c10d.ReduceOptions, _ROOT | _OP | _TIMEOUT),
    "broadcast": _Call((("tensors", "tensor"),), c10d.BroadcastOptions, _ROOT | _TIMEOUT),
    "reduce_scatter": _Call((("output_tensors", "output"), ("input_tensors", "input")), c10d.ReduceScatterOptions, _OP | _TIMEOUT),
    "allgather": _Call((("output_tensors",), ("input_tensors", "input_tensor")), c10d.AllgatherOptions, _TIMEOUT),
    "gather": _Call((("output_tensors",), ("input_tensors", "input_tensor")), c10d.GatherOptions, _ROOT | _TIMEOUT),
    "scatter": _Call((("output_tensors", "output_tensor"), ("input_tensors",)), c10d.ScatterOptions, _ROOT | _TIMEOUT),
    "barrier": _Call((), c10d.BarrierOptions, _TIMEOUT),
    "allreduce_coalesced": _Call((("tensors",),), c10d.AllreduceCoalescedOptions, {}, False),
    "allgather_coalesced": _Call((("output_lists",), ("input_list",)), c10d.AllgatherOptions, {}, False),
    "allgather_into_tensor_coalesced": _Call((("outputs",), ("inputs",)), c10d.AllgatherOptions, {}, False),
    "reduce_scatter_tensor_coalesced": _Call((("outputs",), ("inputs",)), c10d.ReduceScatterOptions, {}, False),
    "_allgather_base": _Call((("output",), ("input",)), c10d.AllgatherOptions, {}, False),
    "_reduce_scatter_base": _Call((("outputTensor",), ("inputTensor",)), c10d.ReduceScatterOptions, {}, False),
    "alltoall": _Call((("output_tensors",), ("input_tensors",)), c10d.AllToAllOptions, {}, False),
    "alltoall_base": _Call(
        (("output",), ("input",), ("output_split_sizes",), ("input_split_sizes",)), c10d.AllToAllOptions, _TIMEOUT, False
    ),
}


def _with_options(name: str, call: _Call, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """The arguments as lists and options. TypeError where none of torch's forms has them."""
    given, left, named = [], list(arguments), dict(named)
    for names in call.tensors:
        known = [each for each in names if each in named]
        if not left and not known:
            raise TypeError(f"{name}() has no argument {' or '.join(map(repr, names))}")
        given.append(left.pop(0) if left else named.pop(known[0]))
    if call.lists and any(isinstance(each, torch.Tensor) for each in given):
        given = [[each] for each in given]
    options = left.pop(0) if left and isinstance(left[0], call.options) else named.pop("opts", None)
    if options is None:
        options = call.options()
        plain = list(call.plain)
        values = {plain.pop(0): left.pop(0) for _ in range(min(len(plain), len(left)))}
        values |= {each: named.pop(each) for each in plain if each in named}
        for each, value in values.items():
            if value is not None:
                setattr(options, call.plain[each], value)
    if left or named:
        raise TypeError(f"{name}() takes no further argument {next(iter(named), None) or left[0]!r}")
    return [*given, options]


def _in_every_form(name: str, call: _Call, own: Any) -> Any:
    @functools.wraps(own)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if arguments and not named:
            last = arguments[-1]
            if isinstance(last, call.options) or not (call.lists or isinstance(last, timedelta)):
                return own(self, *arguments)
        return own(self, *_with_options(name, call, arguments, named))

    return method


def accept_every_form(group: type) -> None:
    """Of the calls of a class of process groups."""
    for name, call in _CALLS.items():
        setattr(group, name, _in_every_form(name, call, getattr(group, name)))
