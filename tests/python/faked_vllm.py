"""Imports a module of hmc.integrations.vllm where neither torch nor vLLM is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

__all__ = ["imported"]


@contextmanager
def imported(monkeypatch: pytest.MonkeyPatch, name: str, distributed: Any, modules: Mapping[str, Any]) -> Iterator[Any]:
    """The module ``name``, beside ``distributed`` as torch.distributed and ``modules`` by their names."""
    torch = ModuleType("torch")
    torch.distributed = distributed  # type: ignore[attr-defined]
    fakes = {"torch": torch, "torch.distributed": distributed, "vllm": SimpleNamespace(), "vllm.distributed": SimpleNamespace()}
    fakes |= {"vllm.distributed.weight_transfer": SimpleNamespace(), **modules}
    with monkeypatch.context() as here:
        here.delitem(sys.modules, name, raising=False)
        for module, fake in fakes.items():
            here.setitem(sys.modules, module, fake)
        yield __import__(name, fromlist=["x"])
        sys.modules.pop(name)
