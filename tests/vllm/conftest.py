"""The model, and the engines that tests share. At most two engines run at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import Engine, free_port, save_llama, transfer

PATIENT = {"kv_lease_duration": 180.0}  # on a busy machine decode asks late


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded Llama whose greedy output depends on every block of its cache: weights are far from 0."""
    return save_llama(tmp_path_factory.mktemp("model"), 11)


@pytest.fixture(scope="module")
def start(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Starts an engine; ``wait_ready()`` waits for it. All end with the module."""
    engines: list[Engine] = []
    folder = tmp_path_factory.mktemp("engines")

    def begin(
        block: int, role: str = "kv_both", port: int | None = None, extra: dict[str, Any] | None = None, **more: Any
    ) -> Engine:
        assert sum(engine.process.poll() is None for engine in engines) < 2, "two engines run already"
        config = transfer(role, free_port() if port is None else port, kv_connector_extra_config={**PATIENT, **(extra or {})})
        engines.append(Engine(model, folder / f"{len(engines)}.log", block, config, **more))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()
