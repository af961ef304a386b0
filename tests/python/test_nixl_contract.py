"""The drop-in against NIXL's own package: the same names and signatures. Skipped, saying so, where NIXL is not installed."""

from __future__ import annotations

import enum
import importlib
import inspect
from types import ModuleType
from typing import Any

import pytest

from hmc.integrations import nixl as ours
from hmc.integrations.nixl import _api, _bindings, _utils

PACKAGES = ("nixl_cu13", "nixl_cu12", "nixl_rocm")
# NIXL's C++ agent under nixl_agent.
LEFT_OUT = {"nixlAgent", "nixlAgentConfig"}


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    for name in PACKAGES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    pytest.skip(f"NIXL is not installed (none of {', '.join(PACKAGES)}): its interface was not compared")


def public(holder: Any) -> set[str]:
    return {name for name in dir(holder) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    def plain(value: Any) -> Any:
        return value.value if isinstance(value, enum.Enum) else value

    return [(one.name, one.kind, plain(one.default)) for one in inspect.signature(function).parameters.values()]


def test_the_package_has_the_same_names(theirs: ModuleType) -> None:
    assert set(theirs.__all__) <= public(ours)
    assert theirs.DEFAULT_COMM_PORT == ours.DEFAULT_COMM_PORT


@pytest.mark.parametrize("name", ["nixl_agent", "nixl_agent_config", "nixl_prepped_dlist_handle", "nixl_xfer_handle"])
def test_classes_have_the_same_methods_and_signatures(theirs: ModuleType, name: str) -> None:
    real, made = getattr(theirs._api, name), getattr(_api, name)
    assert public(real) - public(made) == set()
    for method in {*public(real), "__init__"}:
        if inspect.isfunction(getattr(real, method)):
            assert parameters(getattr(made, method)) == parameters(getattr(real, method)), method


def test_constants_and_exceptions_are_the_same(theirs: ModuleType) -> None:
    real = theirs._bindings
    assert public(real) - public(_bindings) == LEFT_OUT
    for name in public(real) & public(_bindings):
        one = getattr(real, name)
        if isinstance(one, type):
            assert issubclass(one, Exception) == issubclass(getattr(_bindings, name), Exception), name
        elif name != "HAVE_UCX_GPU_DEVICE_API":
            assert int(getattr(_bindings, name)) == int(one) if one != "" else getattr(_bindings, name) == "", name


@pytest.mark.parametrize("name", ["nixlXferDList", "nixlRegDList", "nixlRemoteDList"])
def test_lists_have_the_same_methods(theirs: ModuleType, name: str) -> None:
    assert public(getattr(theirs._bindings, name)) - public(getattr(_bindings, name)) == set()


def test_telemetry_has_the_same_fields(theirs: ModuleType) -> None:
    assert public(theirs._bindings.nixlXferTelemetry()) - public(_bindings.nixlXferTelemetry()) == set()


def test_helpers_have_the_same_names(theirs: ModuleType) -> None:
    assert public(importlib.import_module(f"{theirs.__name__}._utils")) - public(_utils) == set()
