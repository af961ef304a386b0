"""``CollectivePlan.export``: a plan's schedule in formats of other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hmc.errors import InvalidArgumentError

if TYPE_CHECKING:
    import hmc

__all__ = ["FORMATS", "export_plan"]


def _chakra(plan: hmc.CollectivePlan, path: Path) -> list[Path]:
    from hmc._exports.chakra import write  # requires protobuf

    return write(plan, path)


def _msccl(plan: hmc.CollectivePlan, path: Path) -> list[Path]:
    from hmc._exports.msccl import write

    return write(plan, path)


FORMATS: dict[str, Callable[[hmc.CollectivePlan, Path], list[Path]]] = {"chakra": _chakra, "msccl": _msccl}


def export_plan(plan: hmc.CollectivePlan, format: str, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The paths of the files written."""
    if format not in FORMATS:
        raise InvalidArgumentError(f'export: "{format}" is no format; pass one of {", ".join(FORMATS)}')
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"export: path must be a str or a path, not {type(path).__name__}")
    file = Path(path)
    if file.name in ("", ".."):
        raise InvalidArgumentError(f'export: "{path}" names no file')
    return tuple(FORMATS[format](plan, file))
