"""Makes a package of NIXL's names out of this one. The packages in ``shims`` are this call."""

from __future__ import annotations

import importlib
import sys

__all__ = ["as_package"]

_MODULES = ("_bindings", "_utils", "logging", "_api")


def as_package(name: str) -> None:
    """Gives the package ``name``, which is being imported, the modules and names that NIXL's has."""
    package = sys.modules[name]
    for part in _MODULES:
        module = importlib.import_module(f"hmc.integrations.nixl.{part}")
        sys.modules[f"{name}.{part}"] = module
        setattr(package, part, module)
        for attribute in getattr(module, "__all__", ()):
            setattr(package, attribute, getattr(module, attribute))
