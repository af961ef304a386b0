"""Pickles that carry functions which another process cannot import: those of ``__main__``, lambdas, nested functions.

Such a function travels as its code, the globals that it names, its defaults and its closure. In the new process a global is set
only where its module has none of that name, so functions sent together share their globals. Classes travel by name.
"""

from __future__ import annotations

import dis
import importlib
import io
import marshal
import pickle
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["dumps", "named_globals"]

GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}


def dumps(value: Any) -> bytes:
    """The pickle of ``value``, for ``pickle.loads`` of the same Python.

    Raises:
        pickle.PicklingError, TypeError, AttributeError, ValueError: as the standard pickler, for what it cannot take.
    """
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def named_globals(function: FunctionType) -> dict[str, Any]:
    """The globals that travel with a function: those that it, or a function inside it, names. A module's are imported with it."""
    if _module_of(function) != "__main__":
        return {}
    names = {name for code in _codes(function.__code__) for name in _global_names(code)}
    return {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in GLOBAL:
            yield instruction.argval


def _submodules(function: FunctionType, values: dict[str, Any]) -> list[str]:
    """Modules that the function reaches by attributes of others, such as ``os.path``: somebody has imported them here."""
    attributes = {name for code in _codes(function.__code__) for name in code.co_names}
    pending = [value.__name__ for value in values.values() if isinstance(value, ModuleType)]
    found: set[str] = set()
    while pending:
        module = pending.pop()
        inside = {f"{module}.{name}" for name in attributes} & sys.modules.keys() - found
        found |= inside
        pending += inside
    return sorted(found)


def _module_of(function: FunctionType) -> str:
    return function.__module__ or "__main__"


def _importable(function: FunctionType) -> bool:
    if _module_of(function) == "__main__":
        return False
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType) and not _importable(value):
            return _reduce_function(value)
        if isinstance(value, CellType):
            return _make_cell, (), _cell_content(value), None, None, _fill_cell
        if isinstance(value, ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, type) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"class {value.__qualname__} is defined in __main__; put it into a module of its own")
        return NotImplemented


def _reduce_function(function: FunctionType) -> Any:
    values = named_globals(function)
    state = {
        "modules": _submodules(function, values),
        "globals": values,
        "defaults": function.__defaults__,
        "keyword_defaults": function.__kwdefaults__,
        "attributes": function.__dict__,
    }
    names = (_module_of(function), function.__name__, function.__qualname__)
    return _make_function, (marshal.dumps(function.__code__), names, function.__closure__), state, None, None, _fill_function


# ---- in the new process. What refers to itself exists before it is filled. ----


def _make_function(code: bytes, names: tuple[str, str, str], closure: tuple[CellType, ...] | None) -> FunctionType:
    module, name, qualified = names
    function = FunctionType(marshal.loads(code), vars(importlib.import_module(module)), name, None, closure)
    function.__module__ = module
    function.__qualname__ = qualified
    return function


def _fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    for module in state["modules"]:
        importlib.import_module(module)
    for name, value in state["globals"].items():
        function.__globals__.setdefault(name, value)
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["keyword_defaults"]
    function.__dict__.update(state["attributes"])


def _make_cell() -> CellType:
    return CellType()


def _cell_content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty
        return ()


def _fill_cell(cell: CellType, content: tuple[Any, ...]) -> None:
    for value in content:
        cell.cell_contents = value
