"""A plan as MLCommons Chakra execution traces: one for each rank, GlobalMetadata and Nodes, each behind its length.

The schema is built here, in a pool of its own, of the fields that are written: no generated code depends on the version of
protobuf, and a program that has Chakra's own classes does not clash with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import hmc

__all__ = ["write"]

_VERSION = "0.0.4"  # of the schema
_COMPUTE, _SEND, _RECEIVE = 4, 5, 6  # NodeType
_NODES = {"send": _SEND, "receive": _RECEIVE, "copy": _COMPUTE, "reduce": _COMPUTE}

# (number, type) of each field; a list is repeated. "attr" is of AttributeProto, whose fields but the name are of a oneof.
_MESSAGES: dict[str, dict[str, tuple[int, Any]]] = {
    "AttributeProto": {
        "name": (1, "string"),
        "int32_val": (7, "int32"),
        "int64_val": (9, "int64"),
        "uint64_val": (13, "uint64"),
        "bool_val": (27, "bool"),
        "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, ["message"])},
    "Node": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "int32"),  # an enumeration there, which is written alike
        "data_deps": (5, ["uint64"]),
        "attr": (10, ["message"]),
    },
}


@cache
def _classes() -> dict[str, Any]:
    """The messages' classes, by name."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise ImportError("export to chakra requires protobuf: pip install protobuf") from error
    package = "ChakraProtoMsg"
    file = descriptor_pb2.FileDescriptorProto(name="hmc/chakra.proto", package=package, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for field_name, (number, kind) in fields.items():
            repeated = isinstance(kind, list)
            field = message.field.add(name=field_name, number=number, label=3 if repeated else 1)
            field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{(kind[0] if repeated else kind).upper()}")
            if field_name == "attr":
                field.type_name = f".{package}.AttributeProto"
            if name == "AttributeProto" and field_name != "name":
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in _MESSAGES}


def _attributes(values: dict[str, Any]) -> list[Any]:
    """Keys are "name:type", as "comm_size:int64"."""
    attributes = []
    for key, value in values.items():
        name, kind = key.split(":")
        attributes.append(_classes()["AttributeProto"](**{"name": name, f"{kind}_val": value}))
    return attributes


def _metadata(plan: hmc.CollectivePlan, rank: int) -> Any:
    values = {
        "producer:string": "HMC",
        "collective:string": plan.call,
        "algorithm:string": plan.algorithm,
        "bytes:uint64": plan.bytes,
        "ranks:int32": plan.ranks,
        "rank:int32": rank,
    }
    return _classes()["GlobalMetadata"](version=_VERSION, attr=_attributes(values))


def _node_attributes(rank: int, step: hmc.PlannedStep, element: int) -> dict[str, Any]:
    if step.kind in ("copy", "reduce"):
        operations = (len(step.sources) - 1) * (step.bytes // element) if step.kind == "reduce" else 0
        return {"is_cpu_op:bool": False, "num_ops:int64": operations, "tensor_size:uint64": step.bytes}
    source, target = (rank, step.peer) if step.kind == "send" else (step.peer, rank)
    return {
        "is_cpu_op:bool": False,
        "comm_size:int64": step.bytes,
        "comm_src:int32": source,
        "comm_dst:int32": target,
        "comm_tag:int32": step.tag,
    }


def _nodes(plan: hmc.CollectivePlan, rank: int, steps: tuple[hmc.PlannedStep, ...]) -> Iterator[Any]:
    """A Node's id is the index of its step. A message to itself is a send and a receive too."""
    for index, step in enumerate(steps):
        attributes = _attributes(_node_attributes(rank, step, plan.element))
        name = f"{plan.call}.{step.kind}.{index}"
        yield _classes()["Node"](id=index, name=name, type=_NODES[step.kind], data_deps=step.after, attr=attributes)


def write(plan: hmc.CollectivePlan, path: Path) -> list[Path]:
    """Writes path.0.et, path.1.et, ... Raises ImportError (protobuf), UnsupportedError, OSError."""
    _classes()
    from google.protobuf.proto import serialize_length_prefixed

    files = []
    for rank, steps in enumerate(plan.schedule()):
        file = path.with_name(f"{path.name}.{rank}.et")
        with file.open("wb") as out:
            serialize_length_prefixed(_metadata(plan, rank), out)
            for node in _nodes(plan, rank, steps):
                serialize_length_prefixed(node, out)
        files.append(file)
    return files
