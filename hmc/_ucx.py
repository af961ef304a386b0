"""Where UCX lies when a Python package brought it (the extra ``ucx``: libucx-cu12)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hmc import _core


def suggest() -> None:
    """Tells the core where package ``libucx`` has the library. Imports and loads nothing: a Context that is to use it does."""
    package = importlib.util.find_spec("libucx")
    for folder in (package.submodule_search_locations or []) if package else []:
        library = Path(folder, "lib", "libucp.so.0")
        if library.exists():
            _core.suggest_library("HMC_UCX_LIBRARY", library)
            return
